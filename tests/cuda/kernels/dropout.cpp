// Dropout's kernel, on a CPU: bit for bit the CPU's own.

#include "core/level/table.hpp"
#include "tests/cuda/kernels/memory.hpp"

#include <doctest/doctest.h>

using namespace mh;
using cuda::GpuType;
using test::Elements;

TEST_CASE("dropout has the bits of the CPU's kernel") {
  std::mt19937 random(1);
  const std::vector<int64_t> samples{7, int64_t{5} << 32}, tokens{0, 9, 100};

  struct Shape {
    int64_t features, first;
    size_t gap;
  };

  for (const GpuType type : {GpuType::fp32, GpuType::bf16}) {
    for (const Shape& s :
         {Shape{64, 0, 0},
          {72, 8, 0},
          {13, 3, 0},
          {1, 0, 0},
          {64, 2, 0},
          {64, 0, 4},
          {2056, 0, 0}}) {
      CAPTURE(s.features);
      const int64_t rows = 6;
      Elements x(type, rows * s.features, s.gap);
      x.fill(random, 1, 1);
      const Elements made(type, x.count(), s.gap), wanted(type, x.count());
      const cuda::DropoutLaunch call{
          .type = type,
          .rows = rows,
          .batch = 2,
          .features = s.features,
          .first_feature = s.first,
          .x = x.data(),
          .y = made.data(),
          .samples = samples.data(),
          .tokens = tokens.data(),
          .key = 0x123456789abcdef0,
          .threshold = 1U << 30,
          .scale = 4.0F / 3};
      CHECK(megahost_cuda_table()->dropout(call, nullptr) == nullptr);
      const auto& kernels = type == GpuType::fp32 ? kernels::base::row_kernels_fp32()
                                                  : kernels::base::row_kernels_bf16();
      kernels.dropout(
          {.batch = 2,
           .features = s.features,
           .first_feature = s.first,
           .x = x.data(),
           .y = wanted.data(),
           .samples = samples.data(),
           .tokens = tokens.data(),
           .key = call.key,
           .threshold = call.threshold,
           .scale = call.scale},
          0,
          rows
      );
      CHECK(made.same(wanted));
    }
  }
}
