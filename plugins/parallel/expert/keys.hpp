#pragma once
/// The keys of expert parallelism, and the combinations that are refused; without LibTorch.

#include <megahost/conditions.hpp>
#include <megahost/layout_search.hpp>
#include <megahost/schema.hpp>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

namespace expert_parallel {

struct Keys {
  struct Config {
    int64_t expert = 1;
    int64_t tensor = 1;
    std::string dispatch = "all_to_all";
  };

  static void fields(mh::Fields<Config>& f) {
    f.add("expert", &Config::expert, "expert-parallel degree, over the ranks of a stage")
        .at_least(1)
        .degree(mh::MeshAxis::ep);
    f.add("expert_tensor", &Config::tensor, "tensor-parallel degree of experts")
        .at_least(1)
        .degree(mh::MeshAxis::etp);
    f.add(
         "expert_dispatch",
         &Config::dispatch,
         "how tokens reach experts of other ranks: each is sent to those it chose (all_to_all), or "
         "all are gathered"
    )
        .one_of({"all_to_all", "all_gather"})
        .along(mh::MeshAxis::ep);
  }

  static void conditions(mh::Conditions& c) {
    whole_experts(c);
    ranks_of_a_stage(c);
  }

  static std::vector<mh::Table> searched(const mh::SearchFacts& facts) {
    const int64_t experts = std::max<int64_t>(1, facts.model_size("experts"));
    std::vector<mh::Table> all = mh::degrees_up_to("expert", experts);
    std::erase_if(all, [ranks = facts.world / facts.shape.pp](const mh::Table& table) {
      return ranks % table.find("expert")->as_integer() != 0;
    });
    return all;
  }

private:
  /// Whole experts are sharded, each cut in equal parts.
  static void whole_experts(mh::Conditions& c) {
    const int64_t experts = c.integer("model.experts");
    const int64_t hidden = c.integer("model.expert_hidden") > 0 ? c.integer("model.expert_hidden")
                                                                : c.integer("model.ffn_hidden");
    for (const auto& [key, size, name] :
         {std::tuple(std::string("parallel.expert"), experts, "model.experts"),
          std::tuple(std::string("parallel.expert_tensor"), hidden, "model.expert_hidden")}) {
      const int64_t degree = c.integer(key);
      if (!c.sound({key, name}) || degree <= 1) {
        continue;
      }
      if (experts == 0) {
        c.report(
            {key},
            key + " " + c.text(degree) + " shards experts, but the model \"" + c.word("model.use") +
                "\" has none",
            "choose a model with experts, such as model.use = \"moe\", or set " + key + " to 1"
        );
      } else if (size > 0 && size % degree != 0) {
        c.report(
            {key, name},
            std::string(name) + " " + c.text(size) + " is not divisible by " + key + " " +
                c.text(degree),
            "experts are sharded whole and cut in equal parts" + c.nearest_degrees(key, size)
        );
      }
    }
  }

  static void ranks_of_a_stage(mh::Conditions& c) {
    using mh::MeshAxis;
    const int64_t tensor = c.integer("parallel.expert_tensor");
    const int64_t experts = c.integer("parallel.expert") * tensor;
    if (!c.sound({"parallel.expert", "parallel.expert_tensor"}) || !c.sound(c.degree_keys())) {
      return;
    }
    const int64_t ranks = c.degree(MeshAxis::tp) * c.degree(MeshAxis::cp) * c.degree(MeshAxis::dp);
    if (experts > 1 && ranks % experts != 0) {
      c.report(
          {"parallel.expert", "parallel.expert_tensor"},
          "tensor x context x data = " + c.text(ranks) +
              " ranks are not divisible by expert x expert_tensor = " + c.text(experts),
          "expert parallelism lies inside the ranks of one pipeline stage" +
              (ranks % tensor == 0 ? c.nearest_degrees("parallel.expert", ranks / tensor) : "")
      );
    }
  }
};

} // namespace expert_parallel
