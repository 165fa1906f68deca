#pragma once
/// The keys of tensor parallelism, and the combinations that are refused; without LibTorch.

#include <megahost/conditions.hpp>
#include <megahost/layout_search.hpp>
#include <megahost/schema.hpp>

#include <string>
#include <vector>

namespace tensor_parallel {

struct Keys {
  struct Config {
    int64_t tensor = 1;
  };

  static void fields(mh::Fields<Config>& f) {
    f.add("tensor", &Config::tensor, "tensor-parallel degree").at_least(1).degree(mh::MeshAxis::tp);
  }

  static void conditions(mh::Conditions& c) {
    c.divides("model.heads", "parallel.tensor", "tensor parallelism shards whole heads");
    c.divides(
        "model.ffn_hidden", "parallel.tensor", "tensor parallelism splits the feed-forward layer"
    );
    const int64_t kv_heads = c.integer("model.kv_heads");
    const int64_t tensor = c.integer("parallel.tensor");
    if (c.sound({"model.kv_heads", "parallel.tensor"}) && kv_heads > 0 && tensor > 0 &&
        kv_heads % tensor != 0 && tensor % kv_heads != 0) {
      c.report(
          {"model.kv_heads", "parallel.tensor"},
          "model.kv_heads " + c.text(kv_heads) + " and parallel.tensor " + c.text(tensor) +
              " do not divide one another",
          "each rank holds whole key-value heads, or several ranks share one" +
              c.nearest_degrees("parallel.tensor", kv_heads)
      );
    }
  }

  /// It stays inside a node.
  static std::vector<mh::Table> searched(const mh::SearchFacts& facts) {
    return mh::degrees_up_to("tensor", facts.ranks_per_node);
  }

  /// Tokens are split along with it from the first rank on (the strategy sequence).
  static std::vector<mh::Table> changes(const mh::SearchFacts&, const mh::Value& parallel) {
    const int64_t degree = parallel.find("tensor")->as_integer();
    const mh::Value* sequence = parallel.find("sequence");
    std::vector<mh::Table> all = mh::neighbours("tensor", degree);
    if (degree == 1) {
      all.front() = {{"sequence", true}, {"tensor", 2}};
    } else if (degree == 2 && sequence != nullptr && sequence->as_boolean()) {
      all.back() = {{"sequence", false}, {"tensor", 1}};
    }
    return all;
  }
};

} // namespace tensor_parallel
