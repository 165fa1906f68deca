/// Rates of matrix products and of attention.

#include "core/bench/bench.hpp"
#include "core/bench/gemm_choice.hpp"
#include "core/kernels/gemm.hpp"
#include "megahost/nn/attention_kernel.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/autograd.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>

namespace mh {

namespace {

using at::Tensor;
using Json = nlohmann::ordered_json;

constexpr std::array kTypes{at::kBFloat16, at::kFloat};

const char* type_name(at::ScalarType type) {
  return type == at::kFloat ? "fp32" : "bf16";
}

Tensor random(at::IntArrayRef sizes, at::ScalarType type) {
  return at::randn(sizes, at::kFloat).to(type);
}

double gigaflops(double flops, double seconds) {
  return flops / seconds / 1e9;
}

/// The three products of a linear layer of `in` inputs and `out` outputs over `tokens`.
struct Products {
  int64_t tokens, in, out;

  [[nodiscard]] double flops() const {
    return 2.0 * static_cast<double>(tokens) * static_cast<double>(in) * static_cast<double>(out);
  }
};

void add_product_rows(
    std::vector<Json>& rows, const Products& p, at::ScalarType type, const ops::GemmChoice& chosen
) {
  const Tensor x = random({p.tokens, p.in}, type);
  const Tensor w = random({p.out, p.in}, type);
  const Tensor dy = random({p.tokens, p.out}, type);
  const auto add = [&](const char* what, const Tensor& a, const Tensor& b, bool sum) {
    Tensor c = at::empty({a.size(0), b.size(1)}, at::kFloat);
    Tensor made = at::empty({a.size(0), b.size(1)}, type);
    ops::use_gemm({});
    const RunTimes ours = run_times([&] { ops::gemm_(c, a, b, sum); });
    ops::use_gemm(chosen);
    const RunTimes used = !sum ? run_times([&] { made = ops::product(a, b); })
                          : chosen[ops::ProductKind::weight_gradient]
                              ? run_times([&] { ops::gemm_(c, a, b, sum); })
                              : ours;
    const double torch = shortest_time([&] { at::mm_out(made, a, b); });
    rows.push_back(
        {{"type", type_name(type)},
         {"product", what},
         {"m", a.size(0)},
         {"n", b.size(1)},
         {"k", a.size(1)},
         {"kernel_gflops_per_s", gigaflops(p.flops(), ours.shortest)},
         {"libtorch_gflops_per_s", gigaflops(p.flops(), torch)},
         {"gflops_per_s", gigaflops(p.flops(), used.shortest)},
         {"median_gflops_per_s", gigaflops(p.flops(), used.median)}}
    );
  };
  add("output", x, w.t(), false);
  add("gradient of input", dy, w, false);
  add("gradient of weight", dy.t(), x, true);
}

struct AttentionShape {
  int64_t tokens, heads, kv_heads, dim;
};

Json attention_row(const AttentionShape& shape, at::ScalarType type) {
  const auto& [s, h, kv, d] = shape;
  const Tensor q = random({s, 1, h, d}, type);
  const Tensor k = random({s, 1, kv, d}, type);
  const Tensor v = random({s, 1, kv, d}, type);
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  const auto [out, lse] = ops::attention(q, k, v, scale, {});
  const RunTimes forward = run_times([&] { (void)ops::attention(q, k, v, scale, {}); });
  const RunTimes backward =
      run_times([&] { (void)ops::attention_backward(out, q, k, v, out, lse, scale, {}); });
  const auto leaf = [](const Tensor& x) {
    return x.permute({1, 2, 0, 3}).detach().requires_grad_();
  };
  const Tensor ql = leaf(q), kl = leaf(k), vl = leaf(v);
  const Tensor gradient = at::empty(ql.sizes(), ql.options()).copy_(ql.detach());
  const double torch = shortest_time([&] {
    const at::AutoGradMode on(true);
    const Tensor y =
        at::scaled_dot_product_attention(ql, kl, vl, {}, 0.0, true, std::nullopt, h != kv);
    (void)torch::autograd::grad({y}, {ql, kl, vl}, {gradient});
  });
  // Models count half of the pairs, two products forward and four backward.
  const double flops = 2.0 * 2 * static_cast<double>(s * s) / 2 * static_cast<double>(h * d);
  return {
      {"type", type_name(type)},
      {"tokens", s},
      {"heads", h},
      {"kv_heads", kv},
      {"dim", d},
      {"forward_gflops_per_s", gigaflops(flops, forward.shortest)},
      {"backward_gflops_per_s", gigaflops(2 * flops, backward.shortest)},
      {"gflops_per_s", gigaflops(3 * flops, forward.shortest + backward.shortest)},
      {"median_gflops_per_s", gigaflops(3 * flops, forward.median + backward.median)},
      {"libtorch_gflops_per_s", gigaflops(3 * flops, torch)}};
}

} // namespace

double product_rate(at::ScalarType type) {
  double best = 0;
  for (const int64_t side : {2048, 3072}) {
    const Tensor a = random({side, side}, type);
    const double flops = 2.0 * std::pow(static_cast<double>(side), 3);
    Tensor c = at::empty_like(a);
    best = std::max(best, flops / shortest_time([&] { at::mm_out(c, a, a); }));
    best = std::max(best, flops / shortest_time([&] { c = ops::product(a, a); }));
  }
  return best;
}

BenchTable bench_gemm() {
  const at::NoGradGuard no_grad;
  BenchTable table{
      .title = "GEMMs [m, k] x [k, n] of linear layers: one kernel of ours, LibTorch's, "
               "and the one that training uses",
      .columns =
          {{"type", "type"},
           {"product", "product"},
           {"m", "m"},
           {"n", "n"},
           {"k", "k"},
           {"kernel_gflops_per_s", "own"},
           {"libtorch_gflops_per_s", "LibTorch"},
           {"gflops_per_s", "used GFLOP/s"},
           {"median_gflops_per_s", "median"}},
      .rows = {}};
  const ops::GemmChoice chosen = ops::gemm_choice_of(chosen_gemm());
  for (const auto type : kTypes) {
    for (const Products& p :
         {Products{1024, 768, 2304}, {1024, 768, 3072}, {1024, 3072, 768}, {2048, 2048, 2048}}) {
      add_product_rows(table.rows, p, type, chosen);
    }
    table.note += std::string(table.note.empty() ? "" : "\n") + "peak of " + type_name(type) +
                  " products: " + std::to_string(std::lround(product_rate(type) / 1e9)) +
                  " GFLOP/s";
  }
  return table;
}

BenchTable bench_attention() {
  const at::NoGradGuard no_grad;
  BenchTable table{
      .title = "causal attention of one sample, in GFLOP/s of the GEMMs that a model counts",
      .columns =
          {{"type", "type"},
           {"tokens", "tokens"},
           {"heads", "heads"},
           {"kv_heads", "kv heads"},
           {"dim", "dim"},
           {"forward_gflops_per_s", "forward"},
           {"backward_gflops_per_s", "backward"},
           {"gflops_per_s", "both"},
           {"median_gflops_per_s", "median"},
           {"libtorch_gflops_per_s", "LibTorch"}},
      .rows = {}};
  for (const auto type : kTypes) {
    for (const AttentionShape& shape :
         {AttentionShape{512, 12, 12, 64},
          {1024, 12, 12, 64},
          {2048, 12, 12, 64},
          {4096, 12, 12, 64},
          {8192, 12, 12, 64},
          {2048, 8, 2, 128}}) {
      table.rows.push_back(attention_row(shape, type));
    }
  }
  return table;
}

} // namespace mh
