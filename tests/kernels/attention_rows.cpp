/// The table's row of attention.

#include "core/kernels/ops.hpp"
#include "megahost/nn/attention_kernel.hpp"
#include "tests/kernels/operation.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <cmath>

namespace mh::test {

namespace {

using at::Tensor;

double scale_of(const Tensor& q) {
  return 1 / std::sqrt(static_cast<double>(q.size(3)));
}

/// Softmax over scores that are made in full, by differentiable operations.
/// With four inputs the last is a bias.
Tensor attention_by_hand(const Tensors& in, const ops::KernelMask& mask, const Tensor& kept = {}) {
  const int64_t group = in[0].size(2) / in[1].size(2);
  const auto spread = [group](const Tensor& x) {
    return x.repeat_interleave(group, 2).permute({1, 2, 0, 3});
  };
  const int64_t queries = in[0].size(0);
  const int64_t keys = in[1].size(0);
  const Tensor distance = (at::arange(queries) + (keys - queries)).unsqueeze(1) - at::arange(keys);
  Tensor hidden = distance.ne(distance);
  if (mask.causal) {
    hidden = hidden.logical_or(distance.lt(0));
  }
  if (mask.window > 0) {
    hidden = hidden.logical_or(distance.abs().ge(mask.window));
  }
  hidden = hidden.unsqueeze(0);
  if (mask.query_segments) {
    hidden = hidden.logical_or(
        mask.query_segments->t().unsqueeze(2).ne(mask.key_segments->t().unsqueeze(1))
    );
  }
  Tensor scores =
      at::matmul(in[0].permute({1, 2, 0, 3}), spread(in[1]).transpose(-2, -1)) * scale_of(in[0]);
  if (mask.cap > 0) {
    scores = (scores / mask.cap).tanh() * mask.cap;
  }
  if (in.size() > 3) {
    const Tensor columns = (-distance - mask.first_distance).reshape({-1});
    scores = scores + in[3].index_select(1, columns).view({-1, queries, keys});
  }
  Tensor shares = scores.masked_fill(hidden.unsqueeze(1), -INFINITY).softmax(-1);
  if (kept.defined()) {
    shares = shares * kept;
  }
  return at::matmul(shares, spread(in[2])).permute({2, 0, 1, 3});
}

Case attention_case(
    std::string name,
    std::vector<int64_t> q, // queries, batch, heads, dim
    std::vector<int64_t> k, // keys, kv_heads
    ops::KernelMask mask
) {
  const std::vector<int64_t> keys{k[0], q[1], k[1], q[3]};
  return {
      .name = std::move(name),
      .shapes = {q, keys, keys},
      .ours = [mask](const Tensors& in
              ) { return ops::flash_attention(in[0], in[1], in[2], scale_of(in[0]), mask); },
      .plain = [mask](const Tensors& in) { return attention_by_hand(in, mask); }};
}

ops::KernelMask documents(int64_t seq, int64_t batch, int64_t length) {
  const Tensor segments = at::arange(seq * batch).view({batch, seq}).t().floor_divide(length);
  ops::KernelMask mask;
  mask.query_segments = mask.key_segments = segments;
  return mask;
}

/// All keys of another sequence: `documents` of both, if there are several.
ops::KernelMask memory(int64_t queries, int64_t keys, int64_t batch, int64_t documents) {
  ops::KernelMask mask{.causal = false};
  mask.query_index = at::arange(queries);
  mask.key_index = at::arange(keys);
  const auto segments = [&](int64_t length) {
    const Tensor index = at::arange(length).unsqueeze(1) * documents + at::arange(batch);
    return index.floor_divide(length).clamp_max(documents - 1).contiguous();
  };
  if (documents > 1) {
    mask.query_segments = segments(queries);
    mask.key_segments = segments(keys);
  }
  return mask;
}

/// The bias has a column for each distance that occurs, and some before.
Case biased_case(
    std::string name, std::vector<int64_t> q, std::vector<int64_t> k, ops::KernelMask mask
) {
  Case c = attention_case(std::move(name), q, k, mask);
  mask.first_distance = -k[0] - 2;
  c.shapes.push_back({q[2], 2 * k[0] + 2});
  c.ours = [mask](const Tensors& in) {
    auto biased = mask;
    biased.bias = in[3];
    return ops::flash_attention(in[0], in[1], in[2], scale_of(in[0]), biased);
  };
  c.plain = [mask](const Tensors& in) { return attention_by_hand(in, mask); };
  return c;
}

/// The oracle makes all probabilities and drops them by the operator for hidden states, which has a
/// test of its own.
Case dropped_case(
    std::string name,
    std::vector<int64_t> q,
    std::vector<int64_t> k,
    const ops::KernelMask& mask = {}
) {
  Case c = attention_case(std::move(name), q, k, mask);
  const Tensor samples = at::arange(q[1]) + 5;
  c.ours = [samples, mask](const Tensors& in) {
    return ops::flash_attention(in[0], in[1], in[2], scale_of(in[0]), mask, {0.3, 77, samples, 1});
  };
  c.plain = [samples, mask](const Tensors& in) {
    const auto s = in[0].size(0), b = in[0].size(1), h = in[0].size(2), t = in[1].size(0);
    const Tensor rows = at::ones({s, b, h * t}, at::kDouble);
    const Tensor kept =
        ops::dropout(rows, 0.3, 77, samples, at::arange(t - s, t), t).view({s, b, h, t});
    return attention_by_hand(in, mask, kept.permute({1, 2, 0, 3}));
  };
  return c;
}

} // namespace

Operation attention_operation() {
  Operation op{
      .name = "attention",
      .operators = {"megahost::attention", "megahost::attention_backward"},
      .kernels = {at::kFloat, at::kBFloat16},
      .float_tolerance = 2e-6,
      .bf16_tolerance = 6e-3,
      .cases =
          {attention_case("causal", {70, 2, 2, 32}, {70, 2}, {}),
           attention_case("three tokens", {3, 2, 2, 64}, {3, 2}, {}),
           attention_case("grouped", {130, 1, 4, 64}, {130, 2}, {}),
           attention_case("continued text", {5, 2, 4, 64}, {300, 1}, {}),
           attention_case("bidirectional", {300, 1, 2, 16}, {300, 2}, {.causal = false}),
           attention_case("window", {300, 1, 2, 128}, {300, 1}, {.window = 50}),
           attention_case(
               "window both ways", {130, 1, 1, 256}, {130, 1}, {.causal = false, .window = 40}
           ),
           attention_case("cap", {130, 2, 4, 32}, {130, 2}, {.cap = 1.5}),
           attention_case("cap, window", {300, 1, 2, 64}, {300, 1}, {.window = 50, .cap = 0.3}),
           attention_case(
               "cap, bidirectional", {70, 1, 2, 16}, {90, 1}, {.causal = false, .cap = 40}
           ),
           attention_case("cap, odd head", {20, 1, 2, 7}, {20, 1}, {.cap = 0.5}),
           attention_case("documents", {150, 2, 2, 64}, {150, 2}, documents(150, 2, 77)),
           attention_case("memory", {70, 2, 4, 32}, {150, 2}, memory(70, 150, 2, 1)),
           attention_case("shorter memory", {150, 2, 2, 64}, {70, 2}, memory(150, 70, 2, 1)),
           attention_case("memory of documents", {150, 2, 2, 16}, {90, 1}, memory(150, 90, 2, 3)),
           biased_case("bias", {130, 2, 4, 32}, {130, 2}, {}),
           biased_case("bias both ways", {70, 1, 2, 64}, {70, 2}, {.causal = false}),
           biased_case("bias of documents", {150, 2, 2, 16}, {150, 1}, documents(150, 2, 77)),
           biased_case("bias of a continued text", {5, 2, 2, 16}, {100, 1}, {}),
           biased_case("bias, odd head", {20, 1, 2, 7}, {20, 1}, {.causal = false}),
           attention_case("odd head", {20, 1, 2, 7}, {20, 1}, {})},
      .large = attention_case("1,024 tokens, 12 heads of 64", {1024, 1, 12, 64}, {1024, 12}, {})};
  op.large.rival = [](const Tensors& in) {
    const auto heads_first = [](const Tensor& x) { return x.permute({1, 2, 0, 3}); };
    return at::scaled_dot_product_attention(
               heads_first(in[0]), heads_first(in[1]), heads_first(in[2]), {}, 0.0, true
    )
        .permute({2, 0, 1, 3});
  };
  return op;
}

Operation dropped_attention_operation() {
  Operation op = attention_operation();
  op.name = "with dropout";
  op.cases = {
      dropped_case("attention", {130, 2, 2, 32}, {130, 1}),
      dropped_case("attention, cap", {130, 2, 2, 32}, {130, 1}, {.cap = 0.7}),
      dropped_case("attention, odd keys", {70, 2, 2, 32}, {133, 2})};
  op.large = dropped_case("attention; ATen's: ours without", {1024, 1, 12, 64}, {1024, 12});
  op.large.rival = attention_operation().large.ours;
  return op;
}

} // namespace mh::test
