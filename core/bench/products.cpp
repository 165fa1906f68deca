/// Rates of GEMMs and of attention.

#include "core/bench/bench.hpp"
#include "core/bench/gemm_choice.hpp"
#include "core/kernels/gemm.hpp"
#include "core/kernels/ops.hpp"
#include "megahost/nn/attention_kernel.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
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

Tensor random(at::IntArrayRef sizes, at::ScalarType type, at::Device on) {
  return at::randn(sizes, at::TensorOptions(at::kFloat).device(on)).to(type);
}

double gigaflops(double flops, double seconds) {
  return flops / seconds / 1e9;
}

/// The three GEMMs of a linear layer of `in` inputs and `out` outputs over `tokens`.
struct LinearSize {
  int64_t tokens, in, out;

  [[nodiscard]] double flops() const {
    return 2.0 * static_cast<double>(tokens) * static_cast<double>(in) * static_cast<double>(out);
  }
};

/// The GEMMs of GPT-2 124M, and a square one.
const std::vector<LinearSize> kCpuProducts{
    {1024, 768, 2304}, {1024, 768, 3072}, {1024, 3072, 768}, {2048, 2048, 2048}};
/// The GEMMs of Llama 3 8B at 8,192 tokens, and of GPT-3 1.3B at 4,096.
const std::vector<LinearSize> kGpuProducts{
    {8192, 4096, 6144},
    {8192, 4096, 4096},
    {8192, 4096, 28672},
    {8192, 14336, 4096},
    {4096, 2048, 6144},
    {4096, 2048, 8192},
    {4096, 8192, 2048}};

void add_product_rows(
    std::vector<Json>& rows,
    const LinearSize& p,
    at::ScalarType type,
    const ops::GemmChoice& chosen,
    const Device& device
) {
  const at::Device on = device.device();
  const Tensor x = random({p.tokens, p.in}, type, on);
  const Tensor w = random({p.out, p.in}, type, on);
  const Tensor dy = random({p.tokens, p.out}, type, on);
  const auto add = [&](const char* what, const Tensor& a, const Tensor& b, bool sum) {
    const std::array<int64_t, 2> sizes{a.size(0), b.size(1)};
    Tensor c = at::empty(sizes, a.options().dtype(at::kFloat));
    Tensor made = at::empty(sizes, a.options());
    ops::use_gemm({});
    const RunTimes ours = run_times([&] { ops::gemm_(c, a, b, sum); }, &device);
    ops::use_gemm(chosen);
    const RunTimes used = !sum ? run_times([&] { made = ops::product(a, b); }, &device)
                          : chosen[ops::ProductKind::weight_gradient]
                              ? run_times([&] { ops::gemm_(c, a, b, sum); }, &device)
                              : ours;
    Json torch; // null: `-` in the table
    if (libtorch_has_gemm(a)) {
      torch = gigaflops(p.flops(), shortest_time([&] { at::mm_out(made, a, b); }, &device));
    }
    rows.push_back(
        {{"type", type_name(type)},
         {"product", what},
         {"m", a.size(0)},
         {"n", b.size(1)},
         {"k", a.size(1)},
         {"kernel_gflops_per_s", gigaflops(p.flops(), ours.shortest)},
         {"libtorch_gflops_per_s", torch},
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

const std::vector<AttentionShape> kCpuAttention{
    {512, 12, 12, 64},
    {1024, 12, 12, 64},
    {2048, 12, 12, 64},
    {4096, 12, 12, 64},
    {8192, 12, 12, 64},
    {2048, 8, 2, 128}};
const std::vector<AttentionShape> kGpuAttention{
    {1024, 96, 96, 64}, {4096, 16, 16, 128}, {4096, 32, 8, 128}, {8192, 32, 8, 128}};

Json attention_row(const AttentionShape& shape, at::ScalarType type, const Device& device) {
  const auto& [s, h, kv, d] = shape;
  const at::Device on = device.device();
  const Tensor q = random({s, 1, h, d}, type, on);
  const Tensor k = random({s, 1, kv, d}, type, on);
  const Tensor v = random({s, 1, kv, d}, type, on);
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  const auto [out, lse] = ops::attention(q, k, v, scale, {});
  const RunTimes forward = run_times([&] { (void)ops::attention(q, k, v, scale, {}); }, &device);
  const RunTimes backward =
      run_times([&] { (void)ops::attention_backward(out, q, k, v, out, lse, scale, {}); }, &device);
  const auto leaf = [](const Tensor& x) {
    return x.permute({1, 2, 0, 3}).detach().requires_grad_();
  };
  const Tensor ql = leaf(q), kl = leaf(k), vl = leaf(v);
  const Tensor gradient = at::empty(ql.sizes(), ql.options()).copy_(ql.detach());
  const double torch = shortest_time(
      [&] {
        const at::AutoGradMode on(true);
        const Tensor y =
            at::scaled_dot_product_attention(ql, kl, vl, {}, 0.0, true, std::nullopt, h != kv);
        (void)torch::autograd::grad({y}, {ql, kl, vl}, {gradient});
      },
      &device
  );
  // Models count half of the pairs, two GEMMs forward and four backward.
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

bool libtorch_has_gemm(const at::Tensor& a) {
  return a.scalar_type() == at::kFloat || ops::libtorch_multiplies(a);
}

double product_rate(at::ScalarType type, const Device* device) {
  ops::ensure_registered();
  const at::NoGradGuard no_grad;
  const at::Device on = device == nullptr ? at::Device(at::kCPU) : device->device();
  double best = 0;
  for (const int64_t side : on.is_cpu() ? std::array{2048, 3072} : std::array{8192, 16384}) {
    const Tensor a = random({side, side}, type, on);
    const double flops = 2.0 * std::pow(static_cast<double>(side), 3);
    Tensor c = at::empty_like(a);
    if (libtorch_has_gemm(a)) {
      best = std::max(best, flops / shortest_time([&] { at::mm_out(c, a, a); }, device));
    }
    best = std::max(best, flops / shortest_time([&] { c = ops::product(a, a); }, device));
  }
  return best;
}

BenchTable bench_gemm(const Device& device) {
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
  const bool cpu = device.device().is_cpu();
  const auto chosen = cpu ? ops::gemm_choice_of(chosen_gemm()) : ops::GemmChoice();
  for (const auto type : kTypes) {
    for (const LinearSize& p : cpu ? kCpuProducts : kGpuProducts) {
      add_product_rows(table.rows, p, type, chosen, device);
    }
    table.note += std::string(table.note.empty() ? "" : "\n") + "peak of " + type_name(type) +
                  " GEMMs: " + std::to_string(std::lround(product_rate(type, &device) / 1e9)) +
                  " GFLOP/s";
  }
  return table;
}

BenchTable bench_attention(const Device& device) {
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
    for (const AttentionShape& shape : device.device().is_cpu() ? kCpuAttention : kGpuAttention) {
      table.rows.push_back(attention_row(shape, type, device));
    }
  }
  return table;
}

} // namespace mh
