// The chunked form of the gated delta rule: what the recurrence gives token by token, and all its
// gradients, for chunks of any size, packed documents, several runs of tokens, shared keys, a state
// that is passed in and out; and bf16.

#include "plugins/models/hybrid/delta_rule.hpp"

#include "plugins/models/hybrid/delta_cpu.hpp"
#include "plugins/models/hybrid/scan.hpp"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones_like.h>
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

namespace delta_rule_tests {

using namespace mh;
using namespace mh::hybrid;

namespace {

constexpr int64_t kSeq = 23, kBatch = 2, kKeyHeads = 2, kHeads = 6, kKeyDim = 5, kDim = 3;

at::Tensor normal(std::vector<int64_t> sizes, at::ScalarType type) {
  return at::randn(sizes, at::kDouble).to(type).requires_grad_();
}

/// Leaves of the graph: q, k, v, beta, log_decay, the state before the first token.
std::vector<at::Tensor> leaves(at::ScalarType type, int64_t key_dim = kKeyDim, int64_t dim = kDim) {
  const at::Tensor beta = at::rand({kSeq, kBatch, kHeads}, at::kDouble);
  const at::Tensor decay = at::rand({kSeq, kBatch, kHeads}, at::kDouble).mul_(-2);
  return {
      normal({kSeq, kBatch, kKeyHeads, key_dim}, type),
      normal({kSeq, kBatch, kKeyHeads, key_dim}, type),
      normal({kSeq, kBatch, kHeads, dim}, type),
      beta.to(type).requires_grad_(),
      decay.to(type).requires_grad_(),
      normal({kBatch, kHeads, key_dim, dim}, type)};
}

/// Documents begin at other tokens in each sample, twice one after the other.  bool [S, B]
at::Tensor starts_of_samples() {
  const at::Tensor index = at::arange(kSeq);
  return at::stack({index.eq(4) + index.eq(5) + index.eq(17), index.eq(10) + index.eq(22)}, 1)
      .to(at::kBool);
}

DeltaInputs inputs_of(const std::vector<at::Tensor>& in, const at::Tensor& starts) {
  return {in[0], in[1], in[2], in[3], in[4], starts};
}

/// The vectors with length 1, for each value head.
at::Tensor directions(const at::Tensor& x) {
  const at::Tensor length = x.square().sum(-1, /*keepdim=*/true).add(1e-6).sqrt();
  return (x / length).repeat_interleave(kHeads / kKeyHeads, 2); // [S, B, H, K]
}

/// The outputs and the last state, as it is written: S = exp(log_decay) S,
/// S = S + k (beta (v - Sᵀ k))ᵀ, y = Sᵀ q / sqrt(K).
std::vector<at::Tensor>
token_by_token(const std::vector<at::Tensor>& in, const at::Tensor& starts) {
  const at::Tensor q = directions(in[0]) / std::sqrt(static_cast<double>(in[0].size(3)));
  const at::Tensor k = directions(in[1]);
  at::Tensor state = in[5]; // [B, H, K, V]
  std::vector<at::Tensor> outputs;
  for (const int64_t t : c10::irange(kSeq)) {
    if (starts.defined()) {
      state = state.masked_fill(starts[t].view({kBatch, 1, 1, 1}), 0);
    }
    state = state * in[4][t].exp().unsqueeze(-1).unsqueeze(-1);
    const at::Tensor read = (state * k[t].unsqueeze(-1)).sum(2); // [B, H, V]
    const at::Tensor written = in[3][t].unsqueeze(-1) * (in[2][t] - read);
    state = state + k[t].unsqueeze(-1) * written.unsqueeze(2);
    outputs.push_back((state * q[t].unsqueeze(-1)).sum(2));
  }
  return {at::stack(outputs), state};
}

/// The same by chunks, whose states are passed here by hand.
std::vector<at::Tensor>
by_chunks(const std::vector<at::Tensor>& in, const at::Tensor& starts, int64_t size) {
  const auto rows = chunk_rows({{0, 9}, {9, kSeq - 9}}, size);
  const DeltaChunks chunks = delta_chunks(inputs_of(in, starts), rows);
  std::vector<at::Tensor> states{in[5]};
  for (const auto i : c10::irange(rows.size())) {
    const auto chunk = static_cast<int64_t>(i);
    states.push_back(at::matmul(chunks.transitions[chunk], states.back()) + chunks.updates[chunk]);
  }
  const at::Tensor last = states.back();
  states.pop_back();
  return {delta_outputs(chunks, at::stack(states), rows), last};
}

/// The same, of whole samples, whose states the kernels pass: the outputs alone.
std::vector<at::Tensor>
by_kernels(const std::vector<at::Tensor>& in, const at::Tensor& starts, int64_t size) {
  const auto rows = chunk_rows({{0, kSeq}}, size);
  return {cpu_delta_rule(inputs_of(in, starts), rows)};
}

/// Leaves with an empty state before the first token, which is no leaf.
std::vector<at::Tensor> without_state(std::vector<at::Tensor> in) {
  in.back() = at::zeros_like(in.back());
  return in;
}

std::vector<at::Tensor>
gradients(const std::vector<at::Tensor>& made, const std::vector<at::Tensor>& in) {
  at::Tensor loss;
  for (const at::Tensor& y : made) {
    const at::Tensor weight =
        at::arange(y.numel(), y.options().requires_grad(false)).mul(0.7).sin().view(y.sizes());
    const at::Tensor part = (y * weight).sum();
    loss = loss.defined() ? loss + part : part;
  }
  return torch::autograd::grad({loss}, in);
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

} // namespace

TEST_CASE("by hand: one head, keys and values of one element") {
  // Lengths are 1. S = 1 * 0.5 * 4 = 2, read as 2; then S is 1, to which 0.25 (9 - 1) is added: 3.
  const auto column = [](std::vector<double> values) {
    return at::tensor(values, at::kDouble).view({-1, 1, 1, 1});
  };
  const DeltaInputs in{
      .q = column({1e6, -1e6}),
      .k = column({1e6, 1e6}),
      .v = column({4, 9}),
      .beta = column({0.5, 0.25}).squeeze(-1),
      .log_decay = column({-1, std::log(0.5)}).squeeze(-1),
      .starts = {}};
  const auto rows = chunk_rows({{0, 2}}, 2);
  const DeltaChunks chunks = delta_chunks(in, rows);
  CHECK(chunks.updates.item<double>() == doctest::Approx(3));
  CHECK(chunks.transitions.item<double>() == doctest::Approx(std::exp(-1) / 2 * 0.5 * 0.75));
  const at::Tensor y = delta_outputs(chunks, chunks.updates * 0, rows);
  CHECK(y.flatten()[0].item<double>() == doctest::Approx(2));
  CHECK(y.flatten()[1].item<double>() == doctest::Approx(-3));
  CHECK(delta_alone(in).flatten()[1].item<double>() == doctest::Approx(-9 * 0.25));
}

TEST_CASE("the delta rule by chunks is what it is token by token, and so are all gradients") {
  at::manual_seed(1);
  for (const auto& [type, allowed] : {std::pair(at::kDouble, 1e-12), std::pair(at::kFloat, 1e-5)}) {
    const auto in = leaves(type);
    for (const at::Tensor& starts : {at::Tensor(), starts_of_samples()}) {
      const auto expected = token_by_token(in, starts);
      const auto expected_gradients = gradients(expected, in);
      for (const int64_t size : {1, 2, 4, 5, 9, 64}) {
        CAPTURE(size);
        CAPTURE(starts.defined());
        const auto made = by_chunks(in, starts, size);
        CHECK(difference(made[0], expected[0]) < allowed);
        CHECK(difference(made[1], expected[1]) < allowed);
        const auto found = gradients(made, in);
        for (size_t i = 0; i < in.size(); ++i) {
          CAPTURE(i);
          CHECK(difference(found[i], expected_gradients[i]) < allowed);
        }
      }
    }
  }
}

TEST_CASE("the state passes through whole samples as it does token by token") {
  at::manual_seed(6);
  const auto in = without_state(leaves(at::kFloat));
  const std::vector<at::Tensor> inputs(in.begin(), in.end() - 1);
  for (const at::Tensor& starts : {at::Tensor(), starts_of_samples()}) {
    const std::vector<at::Tensor> expected{token_by_token(in, starts)[0]};
    const auto expected_gradients = gradients(expected, inputs);
    for (const int64_t size : {1, 2, 5, 9, 64}) {
      CAPTURE(size);
      CAPTURE(starts.defined());
      const auto made = by_kernels(in, starts, size);
      CHECK(difference(made[0], expected[0]) < 1e-5);
      const auto found = gradients(made, inputs);
      for (size_t i = 0; i < inputs.size(); ++i) {
        CAPTURE(i);
        CHECK(difference(found[i], expected_gradients[i]) < 1e-5);
      }
    }
  }
}

TEST_CASE("bf16: as far from the recurrence as its rounding, with its own products or float32's") {
  at::manual_seed(4);
  for (const auto& [key_dim, dim] : {std::pair(kKeyDim, kDim), std::pair(64L, 32L)}) {
    const auto exact = leaves(at::kDouble, key_dim, dim);
    std::vector<at::Tensor> in, same; // the second in float64, of what bf16 leaves of the first
    for (size_t i = 0; i < exact.size(); ++i) {
      const at::Tensor narrow = exact[i].detach().to(i < 3 ? at::kBFloat16 : at::kFloat);
      in.push_back(narrow.clone().requires_grad_());
      same.push_back(narrow.to(at::kDouble).requires_grad_());
    }
    for (const at::Tensor& starts : {at::Tensor(), starts_of_samples()}) {
      const auto expected = token_by_token(same, starts);
      const auto expected_gradients = gradients(expected, same);
      for (const int64_t size : {1, 5, 64}) {
        CAPTURE(key_dim);
        CAPTURE(size);
        const auto made = by_chunks(in, starts, size);
        CHECK((made[0].scalar_type() == at::kFloat));
        CHECK(difference(made[0], expected[0]) < 1e-2);
        CHECK(difference(made[1], expected[1]) < 1e-2);
        const auto found = gradients(made, in);
        for (size_t i = 0; i < in.size(); ++i) {
          CAPTURE(i);
          CHECK((found[i].scalar_type() == in[i].scalar_type()));
          CHECK(difference(found[i], expected_gradients[i]) < 1e-2);
        }
      }
    }
    const auto narrow = without_state(in), wide = without_state(same);
    const std::vector<at::Tensor> leaves_of(narrow.begin(), narrow.end() - 1);
    const std::vector<at::Tensor> wide_leaves(wide.begin(), wide.end() - 1);
    for (const at::Tensor& starts : {at::Tensor(), starts_of_samples()}) {
      const std::vector<at::Tensor> expected{token_by_token(wide, starts)[0]};
      const auto expected_gradients = gradients(expected, wide_leaves);
      for (const int64_t size : {1, 5, 64}) {
        CAPTURE(key_dim);
        CAPTURE(size);
        const auto made = by_kernels(narrow, starts, size);
        CHECK(difference(made[0], expected[0]) < 1e-2);
        const auto found = gradients(made, leaves_of);
        for (size_t i = 0; i < leaves_of.size(); ++i) {
          CAPTURE(i);
          CHECK((found[i].scalar_type() == narrow[i].scalar_type()));
          CHECK(difference(found[i], expected_gradients[i]) < 1e-2);
        }
      }
    }
  }
}

TEST_CASE("threads change no bit") {
  at::manual_seed(5);
  const int threads = at::get_num_threads();
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    auto in = leaves(type, 64, 32);
    for (const size_t i : {3, 4, 5}) {
      in[i] = in[i].detach().to(at::kFloat).requires_grad_();
    }
    std::vector<std::vector<at::Tensor>> runs;
    for (const int count : {1, 3}) {
      at::set_num_threads(count);
      const auto made = by_chunks(in, starts_of_samples(), 4);
      runs.push_back(gradients(made, in));
      runs.back().insert(runs.back().end(), made.begin(), made.end());
      const auto whole = by_kernels(in, starts_of_samples(), 4);
      const auto of_whole = gradients(whole, {in.begin(), in.end() - 1});
      runs.back().insert(runs.back().end(), of_whole.begin(), of_whole.end());
      runs.back().push_back(whole[0]);
    }
    for (size_t i = 0; i < runs[0].size(); ++i) {
      CAPTURE(i);
      CHECK(runs[0][i].equal(runs[1][i]));
    }
  }
  at::set_num_threads(threads);
}

TEST_CASE("tokens alone are chunks of one token, before which the state is empty") {
  at::manual_seed(3);
  const auto in = leaves(at::kDouble);
  const auto rows = chunk_rows({{0, kSeq}}, 1);
  const DeltaChunks chunks = delta_chunks(inputs_of(in, {}), rows);
  const at::Tensor y = delta_outputs(chunks, at::zeros(chunks.updates.sizes(), at::kDouble), rows);
  CHECK(difference(delta_alone(inputs_of(in, {})), y) < 1e-14);
}

TEST_CASE("decays of any strength, and keys that are all alike, keep the digits") {
  at::manual_seed(2);
  auto in = leaves(at::kFloat);
  in[4] = in[4].detach().mul(200).requires_grad_(); // nothing is left after a token
  for (const at::Tensor& gradient : gradients(by_chunks(in, {}, 8), in)) {
    CHECK(gradient.isfinite().all().item<bool>());
  }
  CHECK(difference(by_chunks(in, {}, 8)[0], token_by_token(in, {})[0]) < 1e-5);
  in = leaves(at::kFloat);
  in[1] = at::ones_like(in[1]);
  in[3] = at::ones_like(in[3]);
  in[4] = in[4].detach() * 0; // the system's matrix has only ones below its diagonal
  CHECK(difference(by_chunks(in, {}, 64)[0], token_by_token(in, {})[0]) < 1e-5);
}

} // namespace delta_rule_tests
