#pragma once
/// The keys of ZeRO, and the combinations that are refused; without LibTorch.

#include <megahost/conditions.hpp>
#include <megahost/layout_search.hpp>
#include <megahost/schema.hpp>

#include <string>
#include <vector>

namespace zero_optimizer {

struct Keys {
  struct Config {
    int64_t zero = 0;
  };

  static void fields(mh::Fields<Config>& f) {
    f.add(
         "zero",
         &Config::zero,
         "ZeRO stage, what is sharded over data-parallel ranks: 0 nothing, 1 optimizer state, 2 "
         "gradients too, 3 weights too (FSDP), which each block gathers before it runs"
    )
        .range(0, 3)
        .along(mh::MeshAxis::dp)
        .is(mh::Mechanism::zero);
  }

  static bool in_force(const Config& config) { return config.zero > 0; }

  static void conditions(mh::Conditions& c) {
    const std::string stages = c.degree_key(mh::MeshAxis::pp);
    if (c.sound({"parallel.zero", stages}) && c.integer("parallel.zero") >= 2 &&
        c.degree(mh::MeshAxis::pp) > 1) {
      c.report(
          {"parallel.zero", stages},
          "parallel.zero " + c.text(c.integer("parallel.zero")) + " does not work with " + stages +
              " " + c.text(c.degree(mh::MeshAxis::pp)) + ", expected zero 0 or 1",
          "each microbatch would have to reduce every gradient; nearest: parallel.zero 1, or " +
              stages + " 1"
      );
    }
  }

  static std::vector<mh::Table> searched(const mh::SearchFacts& facts) {
    const int64_t most = facts.shape.dp == 1 ? 0 : facts.shape.pp > 1 ? 1 : 3;
    std::vector<mh::Table> all;
    for (int64_t level = 0; level <= most; ++level) {
      all.push_back({{"zero", level}});
    }
    return all;
  }

  static std::vector<mh::Table> changes(const mh::SearchFacts&, const mh::Value& parallel) {
    std::vector<mh::Table> all;
    for (int64_t level = 0; level <= 3; ++level) {
      if (parallel.find("zero")->as_integer() != level) {
        all.push_back({{"zero", level}});
      }
    }
    return all;
  }
};

} // namespace zero_optimizer
