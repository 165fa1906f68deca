// The vocabulary's softmax and its gradient, on a CPU, against float64.

#include "tests/cuda/kernels/memory.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

using namespace mh;
using cuda::GpuType;
using test::Elements;

namespace {

/// Three rows of logits: one whose label is here, one whose is on another rank, one in the padding.
void check(GpuType type, int64_t columns, int64_t entries, size_t gap) {
  std::mt19937 random(1);
  constexpr int64_t kRows = 3, kFirst = 100;
  const std::vector<int64_t> labels{kFirst + entries / 2, 5, kFirst + entries};
  Elements z(type, kRows * columns, gap);
  z.fill(random, 3, 4);
  std::vector<float> top(kRows), sum(kRows), target(kRows), lse(kRows), scale{0.5F, -2, 1};
  cuda::VocabLaunch call{
      .type = type,
      .rows = kRows,
      .columns = columns,
      .entries = entries,
      .first = kFirst,
      .z = z.data(),
      .labels = labels.data(),
      .top = top.data(),
      .sum = sum.data(),
      .target = target.data(),
      .lse = nullptr,
      .scale = nullptr};
  CHECK(megahost_cuda_table()->vocab(call, nullptr) == nullptr);
  const Elements before = z.copy();
  for (size_t row = 0; row < kRows; ++row) {
    const int64_t base = static_cast<int64_t>(row) * columns;
    float most = -std::numeric_limits<float>::infinity();
    double all = 0;
    for (int64_t i = 0; i < entries; ++i) {
      most = std::max(most, before[base + i]);
    }
    for (int64_t i = 0; i < entries; ++i) {
      all += std::exp(static_cast<double>(before[base + i]) - most);
    }
    CHECK(top[row] == most);
    CHECK(sum[row] == doctest::Approx(all).epsilon(1e-5));
    CHECK(target[row] == (row == 0 ? before[base + entries / 2] : 0.0F));
    lse[row] = most + static_cast<float>(std::log(all));
  }
  call.lse = lse.data();
  call.scale = scale.data();
  CHECK(megahost_cuda_table()->vocab(call, nullptr) == nullptr);
  double worst = 0;
  for (int64_t place = 0; place < z.count(); ++place) {
    const auto row = static_cast<size_t>(place / columns);
    const int64_t column = place % columns;
    const double hit = row == 0 && column == entries / 2 ? 1 : 0;
    const double wanted =
        column < entries
            ? (std::exp(static_cast<double>(before[place]) - lse[row]) - hit) * scale[row]
            : 0;
    worst = std::max(worst, std::abs(z[place] - wanted));
  }
  CHECK(worst < (type == GpuType::fp32 ? 2e-6 : 4e-3));
}

} // namespace

TEST_CASE("a row's softmax and the gradient of its logits are those of float64") {
  for (const GpuType type : {GpuType::fp32, GpuType::bf16}) {
    check(type, 4104, 4099, 0);
    check(type, 4104, 4104, 0);
    check(type, 16, 1, 0);
    check(type, 77, 70, 0);
    check(type, 64, 64, 4); // no packs are loaded
  }
}
