#include "core/kernels/attention.hpp"
#include "core/kernels/attention_plain.hpp"
#include "core/kernels/gemm.hpp"
#include "core/nn/flash_attention.hpp"
#include "tests/kernels/operation.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>

#include <cmath>

namespace mh::test {

namespace {

using at::Tensor;

double scale_of(const Tensor& q) {
  return 1 / std::sqrt(static_cast<double>(q.size(3)));
}

/// Soft max over scores that are made in full, by differentiable operations.
Tensor attention_by_hand(const Tensors& in, const ops::AttentionMask& mask) {
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
  const Tensor scores =
      at::matmul(in[0].permute({1, 2, 0, 3}), spread(in[1]).transpose(-2, -1)) * scale_of(in[0]);
  const Tensor shares = scores.masked_fill(hidden.unsqueeze(1), -INFINITY).softmax(-1);
  return at::matmul(shares, spread(in[2])).permute({2, 0, 1, 3});
}

Case attention_case(
    std::string name,
    std::vector<int64_t> q, // queries, batch, heads, dim
    std::vector<int64_t> k, // keys, kv_heads
    ops::AttentionMask mask
) {
  const std::vector<int64_t> keys{k[0], q[1], k[1], q[3]};
  return {
      .name = std::move(name),
      .shapes = {q, keys, keys},
      .ours = [mask](const Tensors& in
              ) { return flash_attention(in[0], in[1], in[2], scale_of(in[0]), mask); },
      .plain = [mask](const Tensors& in) { return attention_by_hand(in, mask); }};
}

ops::AttentionMask documents(int64_t seq, int64_t batch, int64_t length) {
  const Tensor segments = at::arange(seq * batch).view({batch, seq}).t().floor_divide(length);
  ops::AttentionMask mask;
  mask.query_segments = mask.key_segments = segments;
  return mask;
}

Operation attention() {
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
           attention_case("documents", {150, 2, 2, 64}, {150, 2}, documents(150, 2, 77)),
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

Case gemm_case(std::string name, int64_t m, int64_t k, int64_t n, bool left, bool right) {
  const auto turned = [](const Tensor& x, bool turn) { return turn ? x.t() : x; };
  const auto shape = [](int64_t rows, int64_t columns, bool turn) {
    return turn ? std::vector<int64_t>{columns, rows} : std::vector<int64_t>{rows, columns};
  };
  return {
      .name = std::move(name),
      .shapes = {shape(m, k, left), shape(k, n, right)},
      .ours =
          [=](const Tensors& in) {
            const Tensor a = turned(in[0].detach(), left);
            const Tensor b = turned(in[1].detach(), right);
            const auto type = a.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
            Tensor c = at::empty({m, n}, a.options().dtype(type));
            ops::gemm_(c, a, b, /*add=*/false);
            ops::gemm_(c, a, b, /*add=*/true);
            return c;
          },
      .plain =
          [=](const Tensors& in) {
            const Tensor a = turned(in[0].detach(), left);
            const Tensor b = turned(in[1].detach(), right);
            const auto type = a.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
            Tensor c = at::zeros({m, n}, a.options().dtype(type));
            c.add_(at::mm(a, b)).add_(at::mm(a, b));
            return c;
          }};
}

Operation gemm() {
  return {
      .name = "gemm_",
      .operators = {"megahost::gemm_"},
      .kernels = {at::kFloat, at::kBFloat16},
      .float_tolerance = 1e-6,
      .bf16_tolerance = 1e-6, // the sums are float32
      .cases =
          {gemm_case("rows", 5, 7, 3, false, false),
           gemm_case("rows by columns", 70, 300, 130, false, true),
           gemm_case("columns by rows", 70, 300, 130, true, false),
           gemm_case("columns", 129, 514, 257, true, true),
           gemm_case("a single sum", 1, 600, 1, false, false)},
      .large = gemm_case("gradient of a weight, twice", 3072, 1024, 768, true, false)};
}

} // namespace

const std::vector<Operation>& operations() {
  static const std::vector<Operation> kOperations = {attention(), gemm()};
  return kOperations;
}

} // namespace mh::test
