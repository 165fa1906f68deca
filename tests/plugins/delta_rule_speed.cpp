// FLOP/s of the chunked delta rule, forward and backward, next to those of a large GEMM of the same
// dtype in the same minute. The multiplications of
// matrices that the chunked form has are counted, causal halves in full.
// Status 1 if forward and backward together are below 60% of the GEMM's at some length up to 8,192.
// usage: delta_rule_speed [float32|bfloat16 [CHUNK]]

#include "core/memory/caching_allocator.hpp"
#include "plugins/models/hybrid/delta_cpu.hpp"
#include "plugins/models/hybrid/scan.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

using namespace mh;
using namespace mh::hybrid;

namespace {

constexpr int64_t kHeads = 8, kKeyHeads = 4, kDim = 128; // a quarter of Qwen3-Next's
constexpr double kFloor = 0.6;

/// The best of some runs, in time of the processor, which others on the machine disturb least.
double seconds(int64_t runs, const std::function<void()>& run) {
  run();
  double best = 1e9;
  for (int64_t i = 0; i < runs; ++i) {
    const std::clock_t start = std::clock();
    run();
    best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  return best;
}

double gemm_rate(at::ScalarType type) {
  constexpr int64_t kSize = 2048;
  const at::Tensor a = at::randn({kSize, kSize}, type), b = at::randn({kSize, kSize}, type);
  return 2.0 * kSize * kSize * kSize / seconds(3, [&] { (void)at::mm(a, b); });
}

/// GEMMs of a token: q kᵀ and k kᵀ of each key head; of each head three of the chunk's matrices (w,
/// u, y), and three of keys or queries and a state (w S, q S, and what is written to S). Backward has
/// twice as many of all.
double flops(int64_t tokens, int64_t chunk, bool backward) {
  const double scores = 4.0 * kKeyHeads * kDim * chunk;
  const double of_chunk = 6.0 * kHeads * kDim * chunk;
  const double of_states = 6.0 * kHeads * kDim * kDim;
  const double forward = scores + of_chunk + of_states;
  return static_cast<double>(tokens) * (backward ? 3 * forward : forward);
}

} // namespace

int main(int argc, char** argv) {
  install_caching_allocator();
  at::set_num_threads(1); // time of the processor counts each
  const auto type = argc > 1 && std::string(argv[1]) == "bfloat16" ? at::kBFloat16 : at::kFloat;
  const int64_t chunk = argc > 2 ? std::stoll(argv[2]) : 64;
  std::printf("one thread, %s, chunks of %ld tokens\n", c10::toString(type), chunk);
  bool fast = true;
  for (const int64_t tokens : {2048L, 4096L, 8192L}) {
    const auto leaf = [&](std::vector<int64_t> sizes) {
      return at::randn(sizes, type).requires_grad_();
    };
    const at::Tensor q = leaf({tokens, 1, kKeyHeads, kDim}), k = leaf({tokens, 1, kKeyHeads, kDim});
    const at::Tensor v = leaf({tokens, 1, kHeads, kDim});
    const at::Tensor beta = at::rand({tokens, 1, kHeads}).requires_grad_();
    const at::Tensor decay = at::rand({tokens, 1, kHeads}).mul_(-0.1).requires_grad_();
    const auto rows = chunk_rows({{0, tokens}}, chunk);
    const DeltaInputs in{q, k, v, beta, decay, {}};
    const auto forward = [&] { return cpu_delta_rule(in, rows); };
    const double ahead = seconds(3, [&] { (void)forward(); });
    const double both = seconds(3, [&] {
      (void)torch::autograd::grad({forward().sum()}, {q, k, v, beta, decay});
    });
    const double peak = gemm_rate(type);
    const double rate = flops(tokens, chunk, false) / ahead;
    const double rate_both = flops(tokens, chunk, true) / both;
    std::printf(
        "%6ld tokens: forward %.2f us a token, %.0f GFLOP/s (%.0f%%); with backward %.2f us a "
        "token, %.0f GFLOP/s (%.0f%% of a GEMM's %.0f)\n",
        tokens,
        ahead / tokens * 1e6,
        rate / 1e9,
        100 * rate / peak,
        both / tokens * 1e6,
        rate_both / 1e9,
        100 * rate_both / peak,
        peak / 1e9
    );
    fast = fast && (tokens > 8192 || rate_both >= kFloor * peak);
  }
  return fast ? 0 : 1;
}
