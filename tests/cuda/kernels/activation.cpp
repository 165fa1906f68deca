// Activations and their gradients, on a CPU, against float64.

#include "tests/cuda/kernels/memory.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <numbers>

using namespace mh;
using cuda::GpuType;
using test::Elements;

namespace {

double activated(Activate kind, double x) {
  switch (kind) {
  case Activate::silu:
    return x / (1 + std::exp(-x));
  case Activate::gelu:
    return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
  case Activate::gelu_tanh:
    break;
  }
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

double slope(Activate kind, double x) {
  constexpr double kStep = 1e-5;
  return (activated(kind, x + kStep) - activated(kind, x - kStep)) / (2 * kStep);
}

/// Keeps the largest difference, relative where numbers are large.
struct Worst {
  void see(double made, double wanted) {
    difference = std::max(difference, std::abs(made - wanted) / std::max(1.0, std::abs(wanted)));
  }

  double difference = 0;
};

void check(GpuType type, Activate kind, bool gated, int64_t width, size_t gap) {
  std::mt19937 random(1);
  constexpr int64_t kRows = 3;
  const int64_t wide = width * (gated ? 2 : 1);
  Elements x(type, kRows * wide, gap), dy(type, kRows * width, gap);
  x.fill(random, 0, 3);
  dy.fill(random, 0, 1);
  const Elements y(type, dy.count(), gap), dx(type, x.count(), gap);
  cuda::ActivationLaunch call{
      .type = type,
      .kind = kind,
      .gated = gated,
      .rows = kRows,
      .width = width,
      .x = x.data(),
      .dy = nullptr,
      .y = y.data(),
      .dx = nullptr};
  CHECK(megahost_cuda_table()->activation(call, nullptr) == nullptr);
  call.dy = dy.data();
  call.y = nullptr;
  call.dx = dx.data();
  CHECK(megahost_cuda_table()->activation(call, nullptr) == nullptr);
  Worst worst;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t i = 0; i < width; ++i) {
      const int64_t in_x = row * wide + i, in_y = row * width + i;
      const double gate = x[in_x], up = gated ? x[in_x + width] : 1.0;
      worst.see(y[in_y], activated(kind, gate) * up);
      worst.see(dx[in_x], dy[in_y] * up * slope(kind, gate));
      if (gated) {
        worst.see(dx[in_x + width], dy[in_y] * activated(kind, gate));
      }
    }
  }
  CHECK(worst.difference < (type == GpuType::fp32 ? 2e-6 : 4e-3));
}

} // namespace

TEST_CASE("activations and their gradients are those of float64") {
  for (const GpuType type : {GpuType::fp32, GpuType::bf16}) {
    for (const Activate kind : {Activate::silu, Activate::gelu, Activate::gelu_tanh}) {
      for (const bool gated : {false, true}) {
        CAPTURE(static_cast<int>(type));
        CAPTURE(static_cast<int>(kind));
        CAPTURE(gated);
        check(type, kind, gated, 704, 0);
        check(type, kind, gated, 13, 0);
        check(type, kind, gated, 64, 4); // no packs are loaded
        check(type, kind, gated, 2056, 0);
      }
    }
  }
}
