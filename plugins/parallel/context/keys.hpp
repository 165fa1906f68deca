#pragma once
/// The keys of context parallelism, and the combinations that are refused; without LibTorch.

#include <megahost/conditions.hpp>
#include <megahost/layout_search.hpp>
#include <megahost/schema.hpp>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

namespace context_parallel {

struct Keys {
  struct Config {
    int64_t context = 1;
    std::string method = "ring";
  };

  static void fields(mh::Fields<Config>& f) {
    f.add("context", &Config::context, "context-parallel degree")
        .at_least(1)
        .degree(mh::MeshAxis::cp);
    f.add(
         "context_method",
         &Config::method,
         "how attention reaches tokens of other context-parallel ranks: keys and values passed on "
         "in a ring, gathered, or heads exchanged for tokens (all_to_all, Ulysses)"
    )
        .one_of({"ring", "all_gather", "all_to_all"})
        .along(mh::MeshAxis::cp);
  }

  static void conditions(mh::Conditions& c) {
    pieces(c);
    exchanged_heads(c);
  }

  /// A rank has at least 1,024 tokens, below which its messages cost more than what it computes.
  static std::vector<mh::Table> searched(const mh::SearchFacts& facts) {
    constexpr int64_t kFewestTokens = 1024;
    return mh::degrees_up_to("context", std::max<int64_t>(1, facts.seq_length / kFewestTokens));
  }

  static std::vector<mh::Table> changes(const mh::SearchFacts&, const mh::Value& parallel) {
    return mh::neighbours("context", parallel.find("context")->as_integer());
  }

private:
  static void pieces(mh::Conditions& c) {
    const int64_t context = c.integer("parallel.context");
    const int64_t length = c.integer("model.seq_length");
    if (c.sound({"model.seq_length", "parallel.context", "parallel.tensor"}) && context > 1 &&
        length % (2 * context) != 0) {
      c.report(
          {"model.seq_length", "parallel.context"},
          "model.seq_length " + c.text(length) +
              " is not divisible by 2 x parallel.context = " + c.text(2 * context),
          "each rank holds two pieces of the sequence, one early and one late: nearest " +
              c.nearest_multiples(length, 2 * context) +
              (length % 2 == 0 ? c.nearest_degrees("parallel.context", length / 2) : "")
      );
    }
  }

  /// The heads of each tensor-parallel rank are sharded over the context ranks.
  static void exchanged_heads(mh::Conditions& c) {
    const int64_t context = c.integer("parallel.context");
    if (context == 1 || c.word("parallel.context_method") != "all_to_all" ||
        !c.sound({"model.heads", "model.kv_heads", "parallel.context", "parallel.tensor"})) {
      return;
    }
    const int64_t tensor = c.degree(mh::MeshAxis::tp);
    const int64_t heads = c.integer("model.heads");
    const int64_t kv_heads = c.integer("model.kv_heads") > 0 ? c.integer("model.kv_heads") : heads;
    const int64_t fewest = std::max<int64_t>(1, kv_heads / tensor);
    if (heads > 0 && (heads / tensor % context != 0 || fewest % context != 0)) {
      c.report(
          {"parallel.context", "parallel.context_method", "model.kv_heads"},
          "parallel.context " + c.text(context) + " with context_method \"all_to_all\" divides " +
              "heads, but a rank of parallel.tensor " + c.text(tensor) + " has " +
              c.text(heads / tensor) + " heads and " + c.text(fewest) + " key-value heads",
          "choose context_method \"ring\" or \"all_gather\"" +
              c.nearest_degrees("parallel.context", std::gcd(heads / tensor, fewest))
      );
    }
  }
};

} // namespace context_parallel
