// The chunked form of Mamba-2's recurrence: what the recurrence gives token by token, and all its
// gradients, for chunks of any size, packed documents, several runs of tokens; and bf16.

#include "plugins/models/hybrid/scan.hpp"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/autograd.h>

#include <doctest/doctest.h>

#include <cmath>
#include <utility>
#include <vector>

namespace scan_tests {

using namespace mh;
using namespace mh::hybrid;

namespace {

constexpr int64_t kSeq = 23, kBatch = 2, kHeads = 6, kDim = 3, kGroups = 2, kState = 5;

at::Tensor normal(std::vector<int64_t> sizes, at::ScalarType type) {
  return at::randn(sizes, at::kDouble).to(type).requires_grad_();
}

/// Leaves of the graph: x, dt, log_decay, b, c.
std::vector<at::Tensor> leaves(at::ScalarType type, int64_t dim = kDim, int64_t state = kState) {
  at::Tensor dt = at::rand({kSeq, kBatch, kHeads}, at::kDouble);
  at::Tensor decay = dt.mul(-3);
  return {
      normal({kSeq, kBatch, kHeads, dim}, type),
      dt.to(type).requires_grad_(),
      decay.to(type).requires_grad_(),
      normal({kSeq, kBatch, kGroups, state}, type),
      normal({kSeq, kBatch, kGroups, state}, type)};
}

/// Documents begin at other tokens in each sample, twice one after the other.  bool [S, B]
at::Tensor starts_of_samples() {
  const at::Tensor index = at::arange(kSeq);
  return at::stack({index.eq(4) + index.eq(5) + index.eq(17), index.eq(10) + index.eq(22)}, 1)
      .to(at::kBool);
}

/// h = exp(log_decay) h + dt x bᵀ, y = h c, as it is written.
at::Tensor token_by_token(const std::vector<at::Tensor>& in, const at::Tensor& starts) {
  const auto of_heads = [](const at::Tensor& x) {
    return x.repeat_interleave(kHeads / kGroups, 1); // [B, H, N]
  };
  at::Tensor h = at::zeros({kBatch, kHeads, in[0].size(3), in[3].size(3)}, in[0].options());
  std::vector<at::Tensor> rows;
  for (const int64_t t : c10::irange(kSeq)) {
    if (starts.defined()) {
      h = h.masked_fill(starts[t].view({kBatch, 1, 1, 1}), 0);
    }
    const at::Tensor written = (in[1][t].unsqueeze(-1) * in[0][t]).unsqueeze(-1);
    h = in[2][t].exp().unsqueeze(-1).unsqueeze(-1) * h + written * of_heads(in[3][t]).unsqueeze(2);
    rows.push_back((h * of_heads(in[4][t]).unsqueeze(2)).sum(-1));
  }
  return at::stack(rows);
}

/// The same by chunks, whose states are passed here by hand.
at::Tensor by_chunks(const std::vector<at::Tensor>& in, const at::Tensor& starts, int64_t size) {
  const ScanInputs inputs{in[0], in[1], in[2], in[3], in[4], starts};
  const auto chunks = chunk_rows({{0, 9}, {9, kSeq - 9}}, size);
  const auto [decays, updates] = chunk_updates(inputs, chunks);
  std::vector<at::Tensor> states{at::zeros_like(updates[0])};
  for (size_t i = 0; i + 1 < chunks.size(); ++i) {
    const auto chunk = static_cast<int64_t>(i);
    states.push_back(decays[chunk].unsqueeze(-1).unsqueeze(-1) * states.back() + updates[chunk]);
  }
  return chunk_outputs(inputs, at::stack(states), chunks);
}

std::vector<at::Tensor> gradients(const at::Tensor& y, const std::vector<at::Tensor>& in) {
  const at::Tensor weight =
      at::arange(y.numel(), y.options().requires_grad(false)).mul(0.7).sin().view(y.sizes());
  return torch::autograd::grad({(y * weight).sum()}, in);
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

} // namespace

TEST_CASE("by hand: one head of one element, one number of state") {
  // h = 2; then 2/2 + 3 * 0.5 * 4 = 7, read by 1 and by 10.
  const auto column = [](std::vector<double> values) {
    return at::tensor(values, at::kDouble).view({-1, 1, 1, 1});
  };
  const ScanInputs in{
      .x = column({1, 3}),
      .dt = column({2, 0.5}).squeeze(-1),
      .log_decay = column({-1, std::log(0.5)}).squeeze(-1),
      .b = column({1, 4}),
      .c = column({1, 10}),
      .starts = {}};
  const auto chunks = chunk_rows({{0, 2}}, 2);
  const auto [decays, updates] = chunk_updates(in, chunks);
  CHECK(updates.item<double>() == doctest::Approx(7));
  const at::Tensor y = chunk_outputs(in, at::zeros_like(updates), chunks);
  CHECK(y.flatten()[0].item<double>() == doctest::Approx(2));
  CHECK(y.flatten()[1].item<double>() == doctest::Approx(70));
}

TEST_CASE("runs are cut into chunks, the last of each may be shorter") {
  const std::vector<TokenRun> expected{{0, 3}, {3, 2}, {5, 3}, {8, 1}};
  CHECK((chunk_rows({{0, 5}, {20, 4}}, 3) == expected));
}

TEST_CASE("chunks of one length that follow each other are a group, of as many as may be at once") {
  const auto sizes = [](const std::vector<AlikeChunks>& groups) {
    std::vector<std::pair<int64_t, int64_t>> all; // chunks, and rows of each
    for (const AlikeChunks& group : groups) {
      all.emplace_back(group.count, group.rows.count);
    }
    return all;
  };
  using Sizes = std::vector<std::pair<int64_t, int64_t>>;
  const auto chunks = chunk_rows({{0, 9}, {9, 14}}, 3);
  CHECK((sizes(alike(chunks)) == Sizes{{7, 3}, {1, 2}}));
  CHECK((sizes(alike(chunks, 27)) == Sizes{{3, 3}, {3, 3}, {1, 3}, {1, 2}}));
  CHECK((sizes(alike(chunks, 1)).size() == 8)); // a chunk at least
}

TEST_CASE("by chunks it is what it is token by token, and so are all gradients") {
  at::manual_seed(1);
  for (const auto& [type, allowed] : {std::pair(at::kDouble, 1e-13), std::pair(at::kFloat, 1e-5)}) {
    const auto in = leaves(type);
    for (const at::Tensor& starts : {at::Tensor(), starts_of_samples()}) {
      const at::Tensor expected = token_by_token(in, starts);
      const auto expected_gradients = gradients(expected, in);
      for (const int64_t size : {1, 2, 4, 5, 9, 64}) {
        CAPTURE(size);
        CAPTURE(starts.defined());
        const at::Tensor y = by_chunks(in, starts, size);
        CHECK(difference(y, expected) < allowed);
        const auto found = gradients(y, in);
        for (size_t i = 0; i < in.size(); ++i) {
          CAPTURE(i);
          CHECK(difference(found[i], expected_gradients[i]) < allowed);
        }
      }
    }
  }
}

TEST_CASE("bf16: as far from the recurrence as its rounding, with its own products or float32's") {
  at::manual_seed(3);
  for (const auto& [dim, state] : {std::pair(kDim, kState), std::pair(32L, 64L)}) {
    const auto exact = leaves(at::kDouble, dim, state);
    std::vector<at::Tensor> in, same; // the second in float64, of what bf16 leaves of the first
    for (size_t i = 0; i < exact.size(); ++i) {
      const bool of_head = i == 1 || i == 2;
      const at::Tensor narrow = exact[i].detach().to(of_head ? at::kFloat : at::kBFloat16);
      in.push_back(narrow.clone().requires_grad_());
      same.push_back(narrow.to(at::kDouble).requires_grad_());
    }
    for (const at::Tensor& starts : {at::Tensor(), starts_of_samples()}) {
      const at::Tensor expected = token_by_token(same, starts);
      const auto expected_gradients = gradients(expected, same);
      for (const int64_t size : {1, 5, 64}) {
        CAPTURE(dim);
        CAPTURE(size);
        const at::Tensor y = by_chunks(in, starts, size);
        CHECK((y.scalar_type() == at::kFloat));
        CHECK(difference(y, expected) < 1e-2);
        const auto found = gradients(y, in);
        for (size_t i = 0; i < in.size(); ++i) {
          CAPTURE(i);
          CHECK((found[i].scalar_type() == in[i].scalar_type()));
          CHECK(difference(found[i], expected_gradients[i]) < 1e-2);
        }
      }
    }
  }
}

TEST_CASE("threads change no bit") {
  at::manual_seed(4);
  const int threads = at::get_num_threads();
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    auto in = leaves(type, 32, 64);
    in[1] = in[1].detach().to(at::kFloat).requires_grad_();
    in[2] = in[2].detach().to(at::kFloat).requires_grad_();
    std::vector<std::vector<at::Tensor>> runs;
    for (const int count : {1, 3}) {
      at::set_num_threads(count);
      const at::Tensor y = by_chunks(in, starts_of_samples(), 4);
      runs.push_back(gradients(y, in));
      runs.back().push_back(y);
    }
    for (size_t i = 0; i < runs[0].size(); ++i) {
      CAPTURE(i);
      CHECK(runs[0][i].equal(runs[1][i]));
    }
  }
  at::set_num_threads(threads);
}

TEST_CASE("decays of any strength neither overflow nor turn into NaN") {
  at::manual_seed(2);
  auto in = leaves(at::kFloat);
  in[2] = in[2].detach().mul(200).requires_grad_(); // nothing is left after a token
  const auto found = gradients(by_chunks(in, {}, 8), in);
  for (const at::Tensor& gradient : found) {
    CHECK(gradient.isfinite().all().item<bool>());
  }
  CHECK(difference(by_chunks(in, {}, 8), token_by_token(in, {})) < 1e-5);
}

} // namespace scan_tests
