// Blocks that mix tokens where ranks hold different ones are found, whatever they mix, unless they say so.

#include "core/model/token_mixing.hpp"

#include "core/mesh/threads.hpp"
#include "megahost/error.hpp"
#include "megahost/nn/attention.hpp"
#include "megahost/nn/tokens_before.hpp"
#include "tests/dist/placed.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

using namespace mh;

namespace {

constexpr int64_t kBatch = 2, kEmbed = 4;
const Axis kHidden{axis::embed, kEmbed};

using Layer = std::function<at::Tensor(const at::Tensor& x, StepContext& context)>;

/// x[t + by], zeros outside.
at::Tensor shifted(const at::Tensor& x, int64_t by) {
  const int64_t rows = x.size(0), kept = rows - std::abs(by);
  const at::Tensor none = at::zeros({std::abs(by), kBatch, kEmbed}, x.options());
  return by > 0 ? at::cat({x.narrow(0, by, kept), none}) : at::cat({none, x.narrow(0, 0, kept)});
}

/// What is said of a block of that layer on the first rank; nothing if it is sound.
std::string said(const MeshShape& shape, bool sequence, int64_t rows, const Layer& layer) {
  std::string words;
  const int64_t seq = rows * shape.cp * (sequence ? shape.tp : 1);
  run_ranks(shape, [&](const Mesh& mesh) {
    const Rules rules = rules_of(sequence);
    const Batch batch{
        .arrays = {{"tokens", at::zeros({seq / shape.cp, kBatch}, at::kLong)}},
        .samples = {0, 1},
        .seq = seq,
        .batch = kBatch};
    const StepContext context(mesh, rules, batch);
    const State state("hidden", at::rand({rows, kBatch, kEmbed}), context.dims(kHidden));
    const auto run = [&](const State& input, StepContext& apart) {
      return input.with("hidden", layer(input["hidden"].value, apart));
    };
    std::string found;
    try {
      const State result = check_token_mixing("layers.0", state, context, run);
      CHECK(result["hidden"].value.sizes() == state["hidden"].value.sizes());
    } catch (const Error& error) {
      found = error.what();
    }
    if (mesh.rank() == 0) {
      words = found;
    }
  });
  return words;
}

at::Tensor attended(const at::Tensor& x, StepContext& context) {
  const at::Tensor q = x.view({x.size(0), kBatch, 1, kEmbed});
  return x + attend(q, q, q, {.causal = true}, {}, context).view_as(x);
}

} // namespace

TEST_CASE("a block that shifts tokens by itself is found by name") {
  for (const int64_t rows : {2, 3, 8, 13}) {
    for (const int64_t by : {-1, 1, -2, 2, -3, 3, -6, 6}) {
      if (2 * std::abs(by) <= rows) {
        CAPTURE(rows);
        CAPTURE(by);
        const auto layer = [by](const at::Tensor& x, StepContext&) { return x + shifted(x, by); };
        CHECK(said({.cp = 2}, false, rows, layer)
                  .starts_with("layers.0: a token's row of its `hidden`"));
      }
    }
  }
  const auto layer = [](const at::Tensor& x, StepContext&) { return x + shifted(x, -1); };
  CHECK(
      said({.tp = 2}, true, 8, layer).find("the ranks of tp hold different tokens") !=
      std::string::npos
  );
}

TEST_CASE("a share that is still zero hides nothing") {
  const auto layer = [](const at::Tensor& x, StepContext&) { return x + 0 * x.cumsum(0); };
  CHECK(said({.cp = 2}, false, 8, layer) != "");
}

TEST_CASE("mixing in addition to attention is found, also with what was gathered") {
  const auto layer = [](const at::Tensor& x, StepContext& context) {
    return attended(shifted(x, -1), context);
  };
  CHECK(said({.cp = 2}, false, 8, layer) != "");
  const auto mean = [](const at::Tensor& x, StepContext& context) {
    const AllTokens all(kHidden);
    return x + all.gather(x, context).mean(0, true) + x.mean(0, true);
  };
  CHECK(said({.cp = 2}, false, 8, mean) != "");
}

TEST_CASE("what says that it mixes tokens passes, as does what computes tokens one by one") {
  CHECK(said({.cp = 2}, false, 8, attended) == "");
  const auto alone = [](const at::Tensor& x, StepContext&) { return x.softmax(-1).mul(2); };
  CHECK(said({.tp = 2}, true, 8, alone) == "");
  const auto whole = [](const at::Tensor& x, StepContext& context) {
    const AllTokens all(kHidden);
    return all.own(all.gather(x, context).cumsum(0), context);
  };
  CHECK(said({.cp = 2}, false, 8, whole) == "");
  const auto before = [](const at::Tensor& x, StepContext& context) {
    ParameterStore store;
    Builder builder(
        store,
        {.mesh = &context.mesh(),
         .rules = &context.rules(),
         .seq = context.seq(),
         .microbatch = kBatch}
    );
    return x + TokensBefore(builder, "before", kHidden, 2).forward(x, context).back();
  };
  CHECK(said({.cp = 2}, false, 8, before) == "");
}

TEST_CASE("a block whose results are no numbers anyway is somebody else's to report") {
  const auto layer = [](const at::Tensor& x, StepContext&) {
    return x * std::numeric_limits<double>::quiet_NaN();
  };
  CHECK(said({.cp = 2}, false, 8, layer) == "");
}

TEST_CASE("where no rank lacks a token of a sample, nothing is refused") {
  const auto layer = [](const at::Tensor& x, StepContext&) { return x + shifted(x, -1); };
  CHECK(said({.dp = 1, .tp = 2}, false, 8, layer) == "");
}
