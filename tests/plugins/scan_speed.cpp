// FLOP/s of the chunked recurrence, forward and backward, next to those of a large GEMM of the same
// dtype in the same minute. The multiplications of matrices that the chunked form has are counted,
// causal halves in full.
// Status 1 if forward and backward together are below 60% of the GEMM's at some length up to 8,192.
// usage: scan_speed [float32|bfloat16 [CHUNK]]

#include "core/memory/caching_allocator.hpp"
#include "plugins/models/hybrid/scan.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
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

constexpr int64_t kHeads = 24, kDim = 64, kState = 128, kGroups = 1; // mamba2-130m
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
  return 2.0 * kSize * kSize * kSize / seconds(5, [&] { (void)at::mm(a, b); });
}

/// GEMMs of a token: c bᵀ of each group; of each head, the matrix of the chunk times x, and two of
/// the state. Backward has twice as many of each, and computes c bᵀ again.
double flops(int64_t tokens, int64_t chunk, bool backward) {
  const double scores = 2.0 * kGroups * kState * chunk;
  const double rest = kHeads * (2.0 * kDim * chunk + 4.0 * kDim * kState);
  return static_cast<double>(tokens) * (scores + rest + (backward ? 3 * scores + 2 * rest : 0));
}

} // namespace

int main(int argc, char** argv) {
  install_caching_allocator();
  at::set_num_threads(1); // time of the processor counts each
  const auto type = argc > 1 && std::string(argv[1]) == "bfloat16" ? at::kBFloat16 : at::kFloat;
  const int64_t chunk = argc > 2 ? std::stoll(argv[2]) : 64;
  std::printf("one thread, %s, chunks of %ld tokens\n", c10::toString(type), chunk);
  bool fast = true;
  for (const int64_t tokens : {2048L, 4096L, 8192L, 32768L}) {
    const auto leaf = [&](std::vector<int64_t> sizes) {
      return at::randn(sizes, type).requires_grad_();
    };
    const at::Tensor x = leaf({tokens, 1, kHeads, kDim});
    const at::Tensor b = leaf({tokens, 1, kGroups, kState}), c = leaf({tokens, 1, kGroups, kState});
    const at::Tensor dt = at::rand({tokens, 1, kHeads}).mul_(0.1).requires_grad_();
    const at::Tensor decay = at::rand({tokens, 1, kHeads}).mul_(-1).requires_grad_();
    const ScanInputs in{x, dt, decay, b, c, {}};
    const auto chunks = chunk_rows({{0, tokens}}, chunk);
    const auto forward = [&] {
      const auto [decays, updates] = chunk_updates(in, chunks);
      return chunk_outputs(in, updates, chunks); // states of any values
    };
    const double ahead = seconds(5, [&] { (void)forward(); });
    const double both = seconds(5, [&] {
      (void)torch::autograd::grad({forward().sum()}, {x, b, c, dt, decay});
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
