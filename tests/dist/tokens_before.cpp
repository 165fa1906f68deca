// Rows of the tokens before each one: the same as on one rank wherever strategies put the tokens of
// a sample, across documents too, and token by token over a cache.

#include "megahost/nn/tokens_before.hpp"

#include "core/mesh/threads.hpp"
#include "megahost/nn/attention.hpp"
#include "megahost/random.hpp"
#include "tests/dist/placed.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

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
  return at::stack({index.ge(5).to(at::kLong) + index.ge(6) + index.ge(12), index.ge(9).to(at::kLong)}, 1);
}

/// As the words say it, on one rank: x[t - back] where that is of the same sample and document.
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
  Deal deal;
  bool sequence;
  int64_t count;
  bool documents;
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
    // What is added to row t - back is what was read there: the same the other way round.
    const at::Tensor kept = by_hand(at::ones_like(gradient), back, c.documents);
    const at::Tensor read = weights.back() * kept;
    gradient.narrow(0, 0, kSeq - back).add_(read.narrow(0, back, kSeq - back));
  }
  run_ranks(c.shape, [&](const Mesh& mesh) {
    Rules rules = rules_of(c.sequence);
    for (Rule& rule : rules.tokens) {
      rule.deal = rule.logical == axis::seq ? c.deal : rule.deal;
    }
    ParameterStore store;
    Builder builder(store, {.mesh = &mesh, .rules = &rules, .seq = kSeq, .microbatch = kBatch});
    const TokensBefore layer(builder, "before", {axis::embed, kEmbed}, c.count);
    std::vector<int64_t> tokens; // of this rank
    for (const Run& run : rules.token_runs(kSeq, mesh)) {
      for (int64_t i = 0; i < run.count; ++i) {
        tokens.push_back(run.first + i);
      }
    }
    Batch batch{.arrays = {}, .samples = {0, 1}, .seq = kSeq, .batch = kBatch};
    const at::Tensor seen = at::tensor(tokens, at::kLong);
    batch.arrays["tokens"] = seen.unsqueeze(1).expand({-1, kBatch});
    if (c.documents) {
      batch.arrays["segments"] = segments_of_samples().index_select(0, seen);
    }
    const at::Tensor rows = c.sequence ? mesh.group(MeshAxis::tp).slice(seen, 0) : seen;
    const at::Tensor own = x.detach().index_select(0, rows).requires_grad_();
    StepContext context(mesh, rules, batch);
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

} // namespace

TEST_CASE("the rows before are those of one rank") {
  using enum Deal;
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

TEST_CASE("tokens read alone find the rows before them in the cache") {
  const Mesh mesh;
  const Rules rules;
  ParameterStore store;
  Builder builder(store, {.mesh = &mesh, .rules = &rules, .seq = kSeq, .microbatch = kBatch});
  const TokensBefore layer(builder, "before", {axis::embed, kEmbed}, 3);
  const at::Tensor x = random("x", {kSeq, kBatch, kEmbed});
  const at::NoGradGuard no_grad;
  KeyValueCache cache(kSeq);
  for (const auto& [first, count] : {std::pair(0, 2), std::pair(2, 1), std::pair(3, 1), std::pair(4, 12)}) {
    const Batch batch{
        .arrays = {{"tokens", at::zeros({count, kBatch}, at::kLong)}}, .samples = {}, .seq = count, .batch = kBatch};
    StepContext context(mesh, rules, batch);
    context.kv_cache = &cache;
    const auto before = layer.forward(x.narrow(0, first, count), context);
    for (int64_t back = 1; back <= 3; ++back) {
      const at::Tensor expected = by_hand(x, back, false).narrow(0, first, count);
      CHECK(at::equal(before[static_cast<size_t>(back - 1)], expected));
    }
  }
}
