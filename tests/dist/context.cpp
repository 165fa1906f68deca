// Context parallelism, each method, against one rank: with windows, documents, a rank whose tokens
// are all masked, dropout, recompute, and together with other strategies.

#include "core/conformance/layout_trial.hpp"
#include "megahost/error.hpp"
#include "tests/dist/small_recipe.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace context_tests {

using namespace mh;

namespace {

/// Compares layouts with one rank, in float64 to 1e-12.
void check(const std::vector<std::string>& model, const std::vector<std::string>& layouts) {
  Host& host = small_host();
  const auto one =
      trial_on_threads(small_recipe(model, ""), host, {.dtype = at::kDouble, .steps = 1});
  CHECK(one.numbers.at("lm loss") > 1);
  for (const auto& layout : layouts) {
    CAPTURE(layout);
    const auto other =
        trial_on_threads(small_recipe(model, layout), host, {.dtype = at::kDouble, .steps = 1});
    const auto difference = compare_trials(one, other, 1e-12, nullptr);
    CAPTURE(difference.where);
    CAPTURE(difference.worst);
    CHECK(difference.within());
  }
}

const std::vector<std::string> kMethods{"ring", "all_gather", "all_to_all"};

std::vector<std::string> each_method(const std::vector<std::string>& layouts) {
  std::vector<std::string> all;
  for (const auto& layout : layouts) {
    for (const auto& method : kMethods) {
      all.push_back(layout + ",context_method=" + method);
    }
  }
  return all;
}

} // namespace

TEST_CASE("context 2 and 4: every method has the numbers of one rank") {
  check({"model.use=llama"}, each_method({"context=2"}));
  check({"model.use=llama"}, {"context=4", "context=4,context_method=all_gather"});
  check({"model.use=llama", "model.kv_heads=12"}, {"context=4,context_method=all_to_all"});
}

TEST_CASE("context with windows, dropout and recompute") {
  check({"model.use=llama", "model.window=16", "recompute.use=full"}, each_method({"context=2"}));
  check(
      {"model.use=gpt", "model.kv_heads=12", "model.dropout=0.1", "model.attention_dropout=0.1"},
      each_method({"context=2", "context=2,tensor=2,sequence=true"})
  );
  check({"model.use=gpt", "model.causal=false"}, each_method({"context=2"}));
}

TEST_CASE("context with attention sinks: windows, dropout, recompute, heads that are split twice") {
  check(
      {"model.use=llama",
       "model.sinks=true",
       "model.window=16",
       "model.window_pattern=[\"window\", \"global\"]",
       "recompute.use=full"},
      each_method({"context=2"})
  );
  check(
      {"model.use=gpt", "model.sinks=true", "model.kv_heads=12", "model.attention_dropout=0.1"},
      each_method({"context=2,tensor=2,sequence=true"})
  );
}

TEST_CASE("context with tensor, sequence and data") {
  check(
      {"model.use=llama", "model.kv_heads=12", "recompute.use=selective"},
      each_method({"context=2,tensor=2", "context=2,data=2,tensor=2,sequence=true"})
  );
}

TEST_CASE("heads that cannot be exchanged are refused before any group exists") {
  CHECK_THROWS_WITH_AS(
      (void)small_recipe({"model.use=llama"}, "context=4,context_method=all_to_all"),
      doctest::Contains("parallel.context"),
      Error
  );
}

} // namespace context_tests
