// Attention without a kernel takes its queries in parts: no scores of all are there, and the
// numbers stay.

#include "core/kernels/attention_plain.hpp"
#include "core/kernels/ops.hpp"
#include "core/kernels/planned_gpu.hpp"
#include "core/memory/caching_allocator.hpp"
#include "core/memory/counting_allocator.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <vector>

namespace attention_parts_tests {

using namespace mh;
using at::Tensor;
using ops::KernelMask;

namespace {

constexpr int64_t kHeads = 2, kDim = 8;
constexpr double kScale = 0.3;

std::vector<Tensor> inputs(int64_t length, const at::TensorOptions& options) {
  std::vector<Tensor> all;
  for (int i = 0; i < 4; ++i) { // queries, keys, values, the result's gradient
    all.push_back(at::randn({length, 1, kHeads, kDim}, options));
  }
  return all;
}

/// T5's bias by distance, and bounded scores in a window.
std::vector<KernelMask> masks(int64_t length, const at::TensorOptions& options) {
  KernelMask biased{.causal = false};
  biased.bias = at::randn({kHeads, 2 * length - 1}, options);
  biased.first_distance = 1 - length;
  return {biased, KernelMask{.window = length / 3, .cap = 5}};
}

std::vector<Tensor> plain(const std::vector<Tensor>& in, const KernelMask& mask) {
  const auto [out, lse] = ops::attention_plain(in[0], in[1], in[2], kScale, mask);
  const auto [dq, dk, dv, dbias] =
      ops::attention_plain_backward(in[3], in[0], in[1], in[2], out, lse, kScale, mask);
  return {out, lse, dq, dk, dv, dbias};
}

std::vector<Tensor> kernel(const std::vector<Tensor>& in, const KernelMask& mask) {
  const auto [out, lse] = ops::attention(in[0], in[1], in[2], kScale, mask);
  const auto [dq, dk, dv, dbias] =
      ops::attention_backward(in[3], in[0], in[1], in[2], out, lse, kScale, mask);
  return {out, lse, dq, dk, dv, dbias};
}

/// Bytes that attention takes in addition to its inputs, as a plan for a GPU counts them.
int64_t planned_peak(int64_t length, size_t mask) {
  const auto options = at::TensorOptions(at::kFloat).device(at::kMeta);
  const auto in = inputs(length, options);
  const KernelMask masked = masks(length, options)[mask];
  const ops::PlannedGpu planned(true);
  const MetaMemory memory;
  (void)kernel(in, masked);
  return memory.peak();
}

} // namespace

TEST_CASE("parts of the queries give the kernel's numbers, in the memory that a plan counts") {
  ops::ensure_registered();
  install_caching_allocator();
  const at::NoGradGuard no_gradients;
  constexpr int64_t kLength = 4608;
  at::manual_seed(7);
  const auto in = inputs(kLength, at::kFloat);
  REQUIRE(ops::plain_queries(in[0], in[1]) < kLength / 2);
  const auto all = masks(kLength, at::kFloat);
  for (size_t i = 0; i < all.size(); ++i) {
    CAPTURE(i);
    const auto expected = kernel(in, all[i]);
    const auto before = allocator_counts().used_bytes;
    reset_peak_bytes();
    const auto found = plain(in, all[i]);
    const auto taken = static_cast<double>(allocator_counts().peak_bytes - before);
    for (size_t part = 0; part < found.size(); ++part) {
      CAPTURE(part);
      const Tensor apart = found[part] - expected[part];
      CHECK(apart.norm().item().toDouble() <= 1e-5 * expected[part].norm().item().toDouble());
    }
    CHECK(taken == doctest::Approx(static_cast<double>(planned_peak(kLength, i))).epsilon(0.02));
  }
}

TEST_CASE("attention without a kernel takes memory as its keys and values do, not as scores") {
  ops::ensure_registered();
  for (const size_t mask : {0, 1}) {
    CAPTURE(mask);
    const int64_t scores = int64_t{65'536} * 65'536 * kHeads * 4;
    CHECK(planned_peak(65'536, mask) < scores / 50);
    CHECK(planned_peak(65'536, mask) < 2 * planned_peak(16'384, mask));
  }
}

} // namespace attention_parts_tests
