// Gradients of a norm's weight and bias, on a CPU, against float64.

#include "tests/cuda/kernels/memory.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

using namespace mh;
using cuda::Type;
using test::Elements;

TEST_CASE("a norm's gradients over chunks of rows are those of float64") {
  std::mt19937 random(1);

  struct Shape {
    int64_t rows, columns;
    size_t gap;
  };

  constexpr int64_t kChunk = 16;
  for (const Type type : {Type::fp32, Type::bf16}) {
    for (const Shape& s : {Shape{33, 1028, 0}, {16, 7, 0}, {5, 64, 4}}) {
      for (const bool centred : {false, true}) {
        CAPTURE(s.columns);
        CAPTURE(centred);
        const int64_t chunks = (s.rows + kChunk - 1) / kChunk;
        Elements x(type, s.rows * s.columns, s.gap), dy(type, x.count(), s.gap);
        Elements mean(Type::fp32, s.rows), rstd(Type::fp32, s.rows);
        x.fill(random, 1, 2);
        dy.fill(random, 0, 1);
        mean.fill(random, 1, 0.1F);
        rstd.fill(random, 0.5F, 0.1F);
        const Elements dweight(Type::fp32, chunks * s.columns), dbias(Type::fp32, dweight.count());
        const auto floats = [](const Elements& e) { return static_cast<float*>(e.data()); };
        const cuda::NormGradientCall call{
            .type = type,
            .rows = s.rows,
            .columns = s.columns,
            .chunk = kChunk,
            .x = x.data(),
            .dy = dy.data(),
            .mean = centred ? floats(mean) : nullptr,
            .rstd = floats(rstd),
            .dweight = floats(dweight),
            .dbias = centred ? floats(dbias) : nullptr};
        CHECK(megahost_cuda_table()->norm_gradient(call, nullptr) == nullptr);
        double worst = 0;
        for (int64_t place = 0; place < dweight.count(); ++place) {
          const int64_t chunk = place / s.columns, column = place % s.columns;
          double weight = 0, bias = 0;
          for (int64_t row = chunk * kChunk; row < std::min(s.rows, (chunk + 1) * kChunk); ++row) {
            const double d = dy[row * s.columns + column];
            const double own = x[row * s.columns + column] - (centred ? mean[row] : 0.0);
            weight += d * own * rstd[row];
            bias += d;
          }
          worst = std::max(worst, std::abs(dweight[place] - weight));
          worst = std::max(worst, centred ? std::abs(dbias[place] - bias) : 0);
        }
        CHECK(worst < 2e-5);
      }
    }
  }
}
