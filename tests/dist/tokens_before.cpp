// Rows of other tokens, those before each one or all: the same as on one rank wherever strategies
// put the tokens of a sample, across documents too, and token by token over a cache.

#include "megahost/nn/tokens_before.hpp"

#include "core/mesh/threads.hpp"
#include "megahost/error.hpp"
#include "megahost/nn/cache.hpp"
#include "megahost/random.hpp"
#include "tests/dist/placed.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

namespace tokens_before_tests {

using namespace mh;

namespace {

constexpr int64_t kSeq = 16, kBatch = 2, kEmbed = 3;

at::Tensor random(const char* name, std::vector<int64_t> sizes) {
  at::Tensor x = at::zeros(sizes, at::kDouble);
  fill_normal(x, random_key(1, name), 1, sizes, std::vector<int64_t>(sizes.size(), 0));
  return x;
}

/// Documents that begin in the middle of runs, and others in each sample.  [S, B]
at::Tensor segments_of_samples() {
  const at::Tensor index = at::arange(kSeq);
  return at::stack(
      {index.ge(5).to(at::kLong) + index.ge(6) + index.ge(12), index.ge(9).to(at::kLong)}, 1
  );
}

/// The definition, on one rank: x[t - back] if that is of the same sample and document.
at::Tensor by_hand(const at::Tensor& x, int64_t back, bool documents) {
  at::Tensor before = at::zeros_like(x);
  const at::Tensor segments = segments_of_samples();
  for (int64_t token = back; token < kSeq; ++token) {
    for (int64_t sample = 0; sample < kBatch; ++sample) {
      if (!documents || segments[token][sample].equal(segments[token - back][sample])) {
        before[token][sample].copy_(x[token - back][sample]);
      }
    }
  }
  return before;
}

struct Case {
  MeshShape shape;
  Sharding sharding;
  bool sequence;
  int64_t count;
  bool documents;
};

/// The tokens of the samples that a rank holds.
struct OwnTokens {
  OwnTokens(const Case& c, const Mesh& mesh)
      : rules(rules_of(c.sequence)) {
    for (Rule& rule : rules.tokens) {
      rule.sharding = rule.logical == axis::seq ? c.sharding : rule.sharding;
    }
    std::vector<int64_t> tokens;
    for (const TokenRun& run : rules.token_runs(kSeq, mesh)) {
      for (int64_t i = 0; i < run.count; ++i) {
        tokens.push_back(run.first + i);
      }
    }
    const at::Tensor seen = at::tensor(tokens, at::kLong);
    batch.arrays["tokens"] = seen.unsqueeze(1).expand({-1, kBatch});
    if (c.documents) {
      batch.arrays["segments"] = segments_of_samples().index_select(0, seen);
    }
    rows = c.sequence ? mesh.group(MeshAxis::tp).slice(seen, 0) : seen;
  }

  Rules rules;
  Batch batch{.arrays = {}, .samples = {0, 1}, .seq = kSeq, .batch = kBatch};
  at::Tensor rows; ///< tokens of activations
};

void check(const Case& c) {
  CAPTURE(c.shape.cp);
  CAPTURE(c.shape.tp);
  CAPTURE(c.count);
  CAPTURE(c.documents);
  const at::Tensor x = random("x", {kSeq, kBatch, kEmbed}).requires_grad_();
  std::vector<at::Tensor> weights;
  at::Tensor gradient = at::zeros_like(x);
  std::vector<at::Tensor> expected;
  for (int64_t back = 1; back <= c.count; ++back) {
    weights.push_back(random(("w" + std::to_string(back)).c_str(), {kSeq, kBatch, kEmbed}));
    expected.push_back(by_hand(x.detach(), back, c.documents));
    // The gradient of row t - back is the sum of what was read there: the same the other way round.
    const at::Tensor kept = by_hand(at::ones_like(gradient), back, c.documents);
    const at::Tensor read = weights.back() * kept;
    gradient.narrow(0, 0, kSeq - back).add_(read.narrow(0, back, kSeq - back));
  }
  run_ranks(c.shape, [&](const Mesh& mesh) {
    const OwnTokens own_tokens(c, mesh);
    ParameterStore store;
    Builder builder(
        store, {.mesh = &mesh, .rules = &own_tokens.rules, .seq = kSeq, .microbatch = kBatch}
    );
    const TokensBefore layer(builder, "before", {axis::embed, kEmbed}, c.count);
    const at::Tensor& rows = own_tokens.rows;
    const at::Tensor own = x.detach().index_select(0, rows).requires_grad_();
    StepContext context(mesh, own_tokens.rules, own_tokens.batch);
    at::Tensor loss = at::zeros({}, at::kDouble);
    const auto before = layer.forward(own, context);
    REQUIRE(before.size() == static_cast<size_t>(c.count));
    for (size_t i = 0; i < before.size(); ++i) {
      CHECK(at::equal(before[i], expected[i].index_select(0, rows)));
      loss = loss + (before[i] * weights[i].index_select(0, rows)).sum();
    }
    torch::autograd::backward({loss}, {});
    const at::Tensor difference = own.grad() - gradient.index_select(0, rows);
    CHECK(difference.abs().max().item().toDouble() < 1e-14);
  });
}

/// Each token becomes a weighted sum of all: y[t] = sum over s of m[t, s] x[s].
void check_all(const Case& c) {
  CAPTURE(c.shape.cp);
  CAPTURE(c.shape.tp);
  const at::Tensor x = random("x", {kSeq, kBatch, kEmbed});
  const at::Tensor mixture = random("m", {kSeq, kSeq});
  const at::Tensor weight = random("w", {kSeq, kBatch, kEmbed});
  const auto mixed = [](const at::Tensor& m, const at::Tensor& whole) {
    return at::einsum("ts,sbe->tbe", {m, whole});
  };
  const at::Tensor expected = mixed(mixture, x);
  const at::Tensor gradient = mixed(mixture.t(), weight);
  const at::Tensor expected_dm = at::einsum("tbe,sbe->ts", {weight, x});
  std::vector<at::Tensor> dm(static_cast<size_t>(c.shape.cp * c.shape.tp));
  run_ranks(c.shape, [&](const Mesh& mesh) {
    const OwnTokens own_tokens(c, mesh);
    const at::Tensor& rows = own_tokens.rows;
    const at::Tensor own = x.index_select(0, rows).requires_grad_();
    const at::Tensor m = mixture.clone().requires_grad_();
    StepContext context(mesh, own_tokens.rules, own_tokens.batch);
    const AllTokens all({axis::embed, kEmbed});
    const at::Tensor whole = all.gather(own, context);
    CHECK(at::equal(whole, x));
    CHECK(all.segments(context).defined() == c.documents);
    if (c.documents) {
      CHECK(at::equal(all.segments(context), segments_of_samples()));
    }
    const at::Tensor result = all.own(mixed(m, whole), context);
    CHECK((result - expected.index_select(0, rows)).abs().max().item().toDouble() < 1e-13);
    torch::autograd::backward({(result * weight.index_select(0, rows)).sum()}, {});
    const at::Tensor difference = own.grad() - gradient.index_select(0, rows);
    CHECK(difference.abs().max().item().toDouble() < 1e-13);
    dm[static_cast<size_t>(mesh.rank())] = m.grad();
  });
  at::Tensor sum = at::zeros_like(mixture);
  for (const at::Tensor& part : dm) {
    sum.add_(part);
  }
  CHECK((sum - expected_dm).abs().max().item().toDouble() < 1e-13);
}

} // namespace

TEST_CASE("the rows before are those of one rank") {
  using enum Sharding;
  for (const bool documents : {false, true}) {
    for (const int64_t count : {1, 3}) {
      check({{}, blocks, false, count, documents});
      check({{.tp = 2}, blocks, true, count, documents});
      check({{.tp = 4}, blocks, true, count, documents});
      check({{.cp = 2}, blocks, false, count, documents});
      check({{.cp = 2}, zigzag, false, count, documents});
      check({{.cp = 4}, zigzag, false, count, documents});
      check({{.cp = 2, .tp = 2}, zigzag, true, count, documents});
      check({{.cp = 2, .tp = 4}, zigzag, true, count, documents});
      check({{.cp = 2, .tp = 2}, zigzag, false, count, documents});
    }
    check({{.cp = 4}, zigzag, false, 5, documents}); // further than a run is long
    check({{.tp = 8}, blocks, true, 15, documents});
  }
}

TEST_CASE("whole samples are those of one rank, and each rank's rows of the result its own") {
  using enum Sharding;
  for (const bool documents : {false, true}) {
    check_all({{}, blocks, false, 0, documents});
    check_all({{.tp = 4}, blocks, true, 0, documents});
    check_all({{.cp = 2}, blocks, false, 0, documents});
    check_all({{.cp = 4}, zigzag, false, 0, documents});
    check_all({{.cp = 2, .tp = 2}, zigzag, true, 0, documents});
  }
}

TEST_CASE("whole samples are refused where new tokens are read alone") {
  const Mesh mesh;
  const Rules rules;
  KeyValueCache cache(kSeq);
  const Batch batch{
      .arrays = {{"tokens", at::zeros({1, kBatch}, at::kLong)}},
      .samples = {},
      .seq = 1,
      .batch = kBatch};
  StepContext context(mesh, rules, batch, {.kv_cache = &cache});
  CHECK_THROWS_AS(
      static_cast<void>(
          AllTokens({axis::embed, kEmbed}).gather(at::zeros({1, kBatch, kEmbed}), context)
      ),
      Error
  );
}

TEST_CASE("tokens read alone find the rows before them in the cache") {
  const Mesh mesh;
  const Rules rules;
  ParameterStore store;
  Builder builder(store, {.mesh = &mesh, .rules = &rules, .seq = kSeq, .microbatch = kBatch});
  const TokensBefore layer(builder, "before", {axis::embed, kEmbed}, 3);
  const at::Tensor x = random("x", {kSeq, kBatch, kEmbed});
  const at::NoGradGuard no_grad;
  KeyValueCache cache(kSeq);
  for (const auto& [first, count] :
       {std::pair(0, 2), std::pair(2, 1), std::pair(3, 1), std::pair(4, 12)}) {
    const Batch batch{
        .arrays = {{"tokens", at::zeros({count, kBatch}, at::kLong)}},
        .samples = {},
        .seq = count,
        .batch = kBatch};
    StepContext context(mesh, rules, batch, {.kv_cache = &cache});
    const auto before = layer.forward(x.narrow(0, first, count), context);
    for (int64_t back = 1; back <= 3; ++back) {
      const at::Tensor expected = by_hand(x, back, false).narrow(0, first, count);
      CHECK(at::equal(before[static_cast<size_t>(back - 1)], expected));
    }
  }
}

} // namespace tokens_before_tests
