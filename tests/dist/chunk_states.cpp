// States of chunks that are passed along ranks, and rows before runs of tokens: as on one rank
// wherever strategies put the tokens of a sample, their gradients too.

#include "megahost/nn/chunk_states.hpp"

#include "core/mesh/threads.hpp"
#include "megahost/nn/tokens_before.hpp"
#include "megahost/random.hpp"
#include "tests/dist/placed.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace chunk_states_tests {

using namespace mh;

namespace {

constexpr int64_t kSeq = 16, kBatch = 2, kHeads = 2, kState = 3, kBack = 3;

/// A chunk multiplies the state [heads, state] with a number of each head, or with a matrix.
enum class With : uint8_t { numbers, matrices };

at::Tensor random_of(const char* name, std::vector<int64_t> sizes) {
  at::Tensor x = at::zeros(sizes, at::kDouble);
  fill_normal(x, random_key(1, name), 1, sizes, std::vector<int64_t>(sizes.size(), 0));
  return x;
}

/// Chunks of one token, some of which forget.
at::Tensor decays_of_samples(With with) {
  const at::Tensor decays = with == With::numbers
                                ? at::sigmoid(random_of("decays", {kSeq, kBatch, kHeads}))
                                : random_of("matrices", {kSeq, kBatch, kHeads, kHeads}).mul_(0.4);
  decays[5].zero_();
  decays[9][1].zero_();
  return decays;
}

at::Tensor by_hand(With with, const at::Tensor& decays, const at::Tensor& updates) {
  std::vector<at::Tensor> states{at::zeros({kBatch, kHeads, kState}, at::kDouble)};
  for (int64_t chunk = 0; chunk + 1 < kSeq; ++chunk) {
    const at::Tensor kept = with == With::numbers ? decays[chunk].unsqueeze(-1) * states.back()
                                                  : at::bmm(decays[chunk], states.back());
    states.push_back(kept + updates[chunk]);
  }
  return at::stack(states);
}

at::Tensor before(
    With with,
    const ChunkStates& layer,
    const at::Tensor& decays,
    const at::Tensor& updates,
    StepContext& context
) {
  return with == With::numbers ? layer.before(decays, updates, context)
                               : layer.before_with_matrices(decays, updates, context);
}

double difference_of(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item().toDouble();
}

Batch batch_of(int64_t rows, int64_t seq) {
  return {
      .arrays = {{"tokens", at::zeros({rows, kBatch}, at::kLong)}},
      .samples = {0, 1},
      .seq = seq,
      .batch = kBatch};
}

void compare_ranks(
    With with, const MeshShape& shape, Sharding sharding, at::DeviceType target = at::kCPU
) {
  CAPTURE(shape.cp);
  CAPTURE(c10::DeviceTypeName(target));
  const at::Tensor decays = decays_of_samples(with).requires_grad_();
  const at::Tensor updates = random_of("updates", {kSeq, kBatch, kHeads, kState}).requires_grad_();
  const at::Tensor weight = random_of("weight", {kSeq, kBatch, kHeads, kState});
  const at::Tensor expected = by_hand(with, decays, updates);
  const auto gradients = torch::autograd::grad({(expected * weight).sum()}, {decays, updates});

  const at::Tensor x = random_of("x", {kSeq, kBatch, kState}).requires_grad_();
  const at::Tensor padded = at::constant_pad_nd(x, {0, 0, 0, 0, kBack, 0});
  const at::Tensor reads = random_of("reads", {kSeq, kBack, kBatch, kState});
  run_ranks(shape, [&](const Mesh& mesh) {
    Rules rules = rules_of(/*sequence=*/false);
    for (Rule& rule : rules.tokens) {
      rule.sharding = rule.logical == axis::seq ? sharding : rule.sharding;
    }
    const auto runs = rules.token_runs(kSeq, mesh);
    const auto own = [&](const at::Tensor& all) {
      std::vector<at::Tensor> parts;
      for (const TokenRun& run : runs) {
        parts.push_back(all.detach().narrow(0, run.first, run.count));
      }
      return at::cat(parts);
    };
    ParameterStore store;
    Builder builder(
        store,
        {.mesh = &mesh, .rules = &rules, .dtype = at::kDouble, .seq = kSeq, .microbatch = kBatch}
    );
    const Batch batch = batch_of(kSeq / mesh.size(MeshAxis::cp), kSeq);
    StepContext context(mesh, rules, batch, {.target = target});

    const ChunkStates layer(builder, "states", {{{"heads"}, kHeads}, {{"state"}, kState}});
    const at::Tensor own_decays = own(decays).requires_grad_();
    const at::Tensor own_updates = own(updates).requires_grad_();
    const at::Tensor states = before(with, layer, own_decays, own_updates, context);
    CHECK(difference_of(states, own(expected)) < 1e-14);
    torch::autograd::backward({(states * own(weight)).sum()}, {});
    CHECK(difference_of(own_decays.grad(), own(gradients[0])) < 1e-14);
    CHECK(difference_of(own_updates.grad(), own(gradients[1])) < 1e-14);

    const TokensBefore last(builder, "before", {{"state"}, kState}, kBack);
    const at::Tensor own_x = own(x).requires_grad_();
    const at::Tensor rows = last.before_runs(own_x, context);
    CHECK((own_runs(own_x, context) == runs));
    at::Tensor loss = own_x.sum() * 0;
    for (size_t run = 0; run < runs.size(); ++run) {
      const at::Tensor found = rows[static_cast<int64_t>(run)];
      CHECK(at::equal(found, padded.narrow(0, runs[run].first, kBack)));
      loss = loss + (found * reads[runs[run].first]).sum();
    }
    torch::autograd::backward({loss}, {});
    // The gradient of a row is the sum of what all ranks read of it.
    at::Tensor of_x = at::zeros({kBack + kSeq, kBatch, kState}, at::kDouble);
    for (int64_t rank = 0; rank < mesh.size(MeshAxis::cp); ++rank) {
      for (const TokenRun& run : sharded_runs(sharding, kSeq, mesh.size(MeshAxis::cp), rank)) {
        of_x.narrow(0, run.first, kBack).add_(reads[run.first]);
      }
    }
    CHECK(difference_of(own_x.grad(), own(of_x.narrow(0, kBack, kSeq))) < 1e-14);
  });
}

} // namespace

TEST_CASE("states and rows before runs are those of one rank") {
  using enum Sharding;
  for (const With with : {With::numbers, With::matrices}) {
    compare_ranks(with, {}, blocks);
    compare_ranks(with, {.cp = 2}, blocks);
    compare_ranks(with, {.cp = 2}, zigzag);
    compare_ranks(with, {.cp = 4}, zigzag);
    compare_ranks(with, {.cp = 2, .tp = 2}, zigzag);
  }
  // A GPU computes them over all chunks at once.
  for (const int64_t cp : {1, 2, 4}) {
    compare_ranks(With::numbers, {.cp = cp}, zigzag, at::kCUDA);
  }
}

TEST_CASE("over a cache states go on from those that were kept") {
  const Mesh mesh;
  const Rules rules;
  ParameterStore store;
  Builder builder(
      store,
      {.mesh = &mesh, .rules = &rules, .dtype = at::kDouble, .seq = kSeq, .microbatch = kBatch}
  );
  const TokensBefore rows(builder, "before", {{"state"}, kState}, kBack);
  const at::Tensor updates = random_of("updates", {kSeq, kBatch, kHeads, kState});
  const at::Tensor x = random_of("x", {kSeq, kBatch, kState});
  const at::Tensor padded = at::constant_pad_nd(x, {0, 0, 0, 0, kBack, 0});
  const at::NoGradGuard no_grad;
  using enum With;
  for (const auto& [with, target] :
       {std::pair(numbers, at::kCPU),
        std::pair(numbers, at::kCUDA),
        std::pair(matrices, at::kCPU)}) {
    const ChunkStates layer(builder, "states", {{{"heads"}, kHeads}, {{"state"}, kState}});
    const at::Tensor decays = decays_of_samples(with);
    const at::Tensor expected = by_hand(with, decays, updates);
    KeyValueCache cache(kSeq);
    for (const auto& [first, count] :
         {std::pair(0, 2), std::pair(2, 1), std::pair(3, 1), std::pair(4, 12)}) {
      const Batch batch = batch_of(count, count);
      StepContext context(mesh, rules, batch, {.target = target, .kv_cache = &cache});
      const at::Tensor states = before(
          with, layer, decays.narrow(0, first, count), updates.narrow(0, first, count), context
      );
      CHECK(difference_of(states, expected.narrow(0, first, count)) < 1e-14);
      const at::Tensor found = rows.before_runs(x.narrow(0, first, count), context);
      CHECK(at::equal(found[0], padded.narrow(0, first, kBack)));
    }
  }
}

} // namespace chunk_states_tests
