#pragma once
/// The keys of sequence parallelism, and the combinations that are refused; without LibTorch.

#include <megahost/conditions.hpp>
#include <megahost/layout_search.hpp>
#include <megahost/schema.hpp>

#include <string>
#include <vector>

namespace sequence_parallel {

struct Keys {
  struct Config {
    bool sequence = false;
  };

  static void fields(mh::Fields<Config>& f) {
    f.add("sequence", &Config::sequence, "split the sequence between tensor-parallel regions")
        .along(mh::MeshAxis::tp)
        .is(mh::Mechanism::sequence);
  }

  static bool in_force(const Config& config) { return config.sequence; }

  static void conditions(mh::Conditions& c) {
    const std::string degree = "parallel.tensor"; // a strategy that splits heads, too
    const bool split = c.flag("parallel.sequence");
    const int64_t tensor = c.integer(degree), context = c.degree(mh::MeshAxis::cp);
    if (c.sound({"parallel.sequence", degree}) && split && tensor <= 1) {
      c.report(
          {"parallel.sequence"},
          "parallel.sequence needs " + degree + " above 1",
          "it splits the sequence over the tensor-parallel ranks; nearest: " + degree +
              " 2, or parallel.sequence false"
      );
    }
    if (!c.sound({"model.seq_length", "parallel.context", degree})) {
      return;
    }
    const int64_t length = c.integer("model.seq_length");
    const bool pieces =
        context == 1 || length % (2 * context) == 0; // else the strategy context says
    if (split && tensor > 1 && pieces && length % (tensor * context) != 0) {
      c.report(
          {"model.seq_length", degree},
          "model.seq_length " + c.text(length) + " is not divisible by " + degree +
              " x parallel.context = " + c.text(tensor * context) +
              ", which parallel.sequence needs",
          "nearest: " + c.nearest_multiples(length, tensor * context)
      );
    }
  }

  static std::vector<mh::Table> searched(const mh::SearchFacts& facts) {
    std::vector<mh::Table> all{{{"sequence", false}}};
    if (facts.shape.tp > 1) {
      all.push_back({{"sequence", true}});
    }
    return all;
  }

  static std::vector<mh::Table> changes(const mh::SearchFacts& facts, const mh::Value& parallel) {
    return facts.shape.tp > 1 && !parallel.find("sequence")->as_boolean()
               ? std::vector<mh::Table>{{{"sequence", true}}}
               : std::vector<mh::Table>();
  }
};

} // namespace sequence_parallel
