// An identity of plans: over all ranks the FLOPs that a step executes are those of its model, under
// every layout; recomputation adds to them, and nothing takes any away. The scores that attention's
// kernel makes again in its backward pass are not counted.

#include "core/plan/plan.hpp"
#include "core/plan/stage_record.hpp"
#include "core/recipe/layouts.hpp"
#include "core/schema/sections.hpp"
#include "megahost/error.hpp"
#include "megahost/nn/attention_kernel.hpp"
#include "tests/dist/small_recipe.hpp"
#include "tests/plan/machine.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

namespace flops_tests {

using namespace mh;

namespace {

using Strings = std::vector<std::string>;

/// A vocabulary that no layout of up to four tensor ranks pads.
std::optional<Recipe> recipe_of(Strings sets, const std::string& layout) {
  sets.insert(
      sets.begin(), {"model.vocab=1024", "model.seq_length=96", "data.use=mock", "batch.global=8"}
  );
  try {
    return small_recipe(sets, layout);
  } catch (const Error&) { // the model refuses this layout
    return std::nullopt;
  }
}

struct Counted {
  double model = 0;    ///< FLOPs of a step
  double executed = 0; ///< by all ranks
};

Counted count(const Recipe& recipe, at::DeviceType device = at::kCPU) {
  const RecordedStep step = record_step(
      {.recipe = recipe, .host = small_host(), .world = recipe.parallel.ranks(), .device = device}
  );
  const Plan plan = make_plan(step, recipe, preset_machine("h200"));
  return {.model = plan.model_flops, .executed = plan.executed_flops};
}

/// How many of them the model takes; each is the model's FLOPs, or more where `extra` says so.
int64_t check(
    const Strings& model,
    const std::vector<Layout>& layouts,
    bool extra = false,
    at::DeviceType device = at::kCPU
) {
  int64_t counted = 0;
  for (const auto& layout : layouts) {
    const auto recipe = recipe_of(model, layout.text);
    if (!recipe) {
      continue;
    }
    ++counted;
    CAPTURE(model);
    CAPTURE(layout.text);
    const Counted flops = count(*recipe, device);
    CAPTURE(flops.executed / flops.model);
    CHECK(flops.executed >= (1 - 1e-12) * flops.model);
    if (!extra) {
      CHECK(flops.executed == doctest::Approx(flops.model).epsilon(1e-12));
    }
  }
  return counted;
}

std::vector<Layout> layouts_of_two() {
  Host& host = small_host();
  return all_layouts(
      shared_schema("parallel", host.known(Kind::strategy)), host.names(Kind::pipeline_schedule), 2
  );
}

std::vector<Layout> combinations() {
  return parse_layouts(
      "context=4,context_method=ring; context=3,context_method=all_gather; "
      "context=3,context_method=all_to_all,tensor=2; "
      "tensor=2,sequence=true,context=2,data=2,zero=1; "
      "pipeline=2,virtual_stages=2,schedule=zb-v,context=2; "
      "tensor=2,sequence=true,pipeline=2,data=2,zero=1; pipeline=4,schedule=zb-h1; "
      "tensor=2,data=2,zero=3"
  );
}

} // namespace

TEST_CASE("pairs of queries and keys: counted as masks let them through") {
  for (const int64_t queries : {1, 5, 12}) {
    for (const int64_t keys : {12, 17}) {
      for (const int64_t window : {0, 1, 4, 12, 40}) {
        for (const bool causal : {true, false}) {
          double pairs = 0;
          for (int64_t q = keys - queries; q < keys; ++q) {
            for (int64_t k = 0; k < keys; ++k) {
              const bool near = window == 0 || std::abs(q - k) < window;
              pairs += near && (!causal || k <= q) ? 1 : 0;
            }
          }
          CAPTURE(queries);
          CAPTURE(keys);
          CAPTURE(window);
          CAPTURE(causal);
          CHECK(ops::visible_pairs(queries, keys, causal, window) == pairs);
        }
      }
    }
  }
}

TEST_CASE("dense models execute their own FLOPs under every layout of two ranks") {
  for (const char* use : {"model.use=llama", "model.use=gpt"}) {
    CHECK(check({use}, layouts_of_two()) >= 8);
  }
}

TEST_CASE("and under combinations, on GPUs, and in every precision") {
  CHECK(check({"model.use=llama"}, combinations()) >= 8);
  CHECK(check({"model.use=llama"}, combinations(), false, at::kCUDA) >= 8);
  for (const char* precision : {"bf16", "fp16", "fp8"}) {
    CHECK(check({"model.use=llama", std::string("precision=") + precision}, combinations()) >= 8);
  }
}

TEST_CASE("windows: their own pairs on a CPU; LibTorch's kernels of GPUs make all scores") {
  const Strings windowed{"model.use=llama", "model.window=16"};
  CHECK(check(windowed, layouts_of_two()) >= 8);
  CHECK(check(windowed, combinations()) >= 8);
  CHECK(check(windowed, combinations(), /*extra=*/true, at::kCUDA) >= 8);
}

TEST_CASE("experts with full slots execute their own FLOPs") {
  // Every token goes to all experts, so that slots are full; a router's GEMM is the same on all
  // ranks that split features but not tokens.
  auto full = small_mixture();
  full.insert(full.end(), {"model.experts=4", "model.experts_per_token=4"});
  const auto layouts = parse_layouts(
      "data=2; expert=2,data=2; expert=2,data=2,expert_dispatch=all_gather; "
      "expert=2,data=2,zero=1; "
      "expert=2,tensor=2,sequence=true; context=2,expert=2; pipeline=2,expert=2,data=2"
  );
  CHECK(check(full, layouts) >= 5);
  CHECK(check(full, parse_layouts("tensor=2; tensor=2,expert=2"), /*extra=*/true) >= 1);
}

TEST_CASE("recomputation executes more, and what ranks pad") {
  for (const char* recompute : {"full", "selective"}) {
    const Strings again{"model.use=llama", std::string("recompute.use=") + recompute};
    CHECK(check(again, combinations(), /*extra=*/true) >= 5);
    const auto recipe = recipe_of(again, "context=2,context_method=ring");
    REQUIRE(recipe);
    const Counted flops = count(*recipe);
    CHECK(flops.executed > 1.001 * flops.model);
  }
  // 1,003 tokens are padded to 1,024: forward and backward GEMMs of the head with 21 more columns.
  const auto padded = recipe_of({"model.use=llama", "model.vocab=1003"}, "data=2");
  REQUIRE(padded);
  const Counted flops = count(*padded);
  const auto hidden = static_cast<double>(padded->model.options.find("hidden")->as_integer());
  const double more = 6 * hidden * 21 * 8 * 96;
  CHECK(flops.executed - flops.model == doctest::Approx(more).epsilon(1e-9));
}

TEST_CASE("hybrids execute the GEMMs within chunks of a recurrence as well") {
  constexpr double kTokens = 8 * 96, kChunk = 32, kDim = 8, kState = 16, kGroups = 2;
  for (const char* layout : {"", "data=2", "pipeline=2"}) {
    const Recipe recipe = small_recipe(
        {"data.use=mock",
         "model.use=hybrid",
         "model.pattern=\"M*\"",
         "model.vocab=1024",
         "model.seq_length=96",
         "batch.global=8",
         "model.mamba_head_dim=8",
         "model.mamba_groups=2",
         "model.mamba_state=16",
         "model.mamba_chunk=32"},
        layout
    );
    const Counted flops = count(recipe);
    const auto of_model = [&](const char* key) {
      return static_cast<double>(recipe.model.options.find(key)->as_integer());
    };
    const double mixers = std::ceil(of_model("layers") / 2); // every other layer, from the first on
    const double inner = of_model("mamba_heads") * kDim;     // numbers of a token
    // The scores of a chunk's tokens and their product with what the tokens bring, three times each;
    // the backward pass makes the scores again.
    const double scores = 2 * kTokens * kChunk * kGroups * kState;
    const double product = 2 * kTokens * kChunk * inner;
    CHECK(
        flops.executed - flops.model ==
        doctest::Approx(mixers * (4 * scores + 3 * product)).epsilon(1e-9)
    );
  }
}

TEST_CASE("retrievers execute the scores between the texts of a batch as well") {
  const Recipe recipe = small_recipe(
      {"model.use=retriever",
       "model.vocab=1024",
       "model.projection_dim=24",
       "model.query_length=32",
       "data.use=ict",
       "data.paths=[\"absent\"]", // a plan reads no text
       "tokenizer.use=byte",
       "tokenizer.special=true",
       "batch.global=8",
       "batch.micro=8"},
      ""
  );
  const Counted flops = count(recipe);
  CHECK(flops.executed - flops.model == doctest::Approx(6 * 8 * 8 * 24).epsilon(1e-9));
}

} // namespace flops_tests
