// Sums of rows, on a CPU, against float64.

#include "tests/cuda/kernels/memory.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

using namespace mh;
using cuda::GpuType;
using test::Elements;

namespace {

void check_sums(GpuType type, int64_t rows, int64_t columns, int64_t split, size_t gap) {
  std::mt19937 random(1);
  Elements x(type, rows * columns, gap), first(GpuType::fp32, split),
      rest(GpuType::fp32, columns - split);
  for (Elements* e : {&x, &first, &rest}) {
    e->fill(random, 0, 1);
  }
  const Elements first_before = first.copy(), rest_before = rest.copy();
  const auto add = [&](const Elements* sums, const Elements* others) {
    const cuda::RowSumsLaunch call{
        .type = type,
        .rows = rows,
        .columns = columns,
        .split = split,
        .x = x.data(),
        .sums = sums == nullptr ? nullptr : static_cast<float*>(sums->data()),
        .rest = others == nullptr ? nullptr : static_cast<float*>(others->data())};
    CHECK(megahost_cuda_table()->row_sums(call, nullptr) == nullptr);
  };
  add(&first, nullptr);
  CHECK(rest.same(rest_before));
  add(nullptr, &rest);
  double worst = 0;
  for (int64_t column = 0; column < columns; ++column) {
    const bool front = column < split;
    double wanted = front ? first_before[column] : rest_before[column - split];
    for (int64_t row = 0; row < rows; ++row) {
      wanted += x[row * columns + column];
    }
    worst = std::max(worst, std::abs((front ? first[column] : rest[column - split]) - wanted));
  }
  CHECK(worst < 2e-5);
}

} // namespace

TEST_CASE("sums of rows are added to what is there, those of columns from a place on to another") {
  for (const GpuType type : {GpuType::fp32, GpuType::bf16}) {
    check_sums(type, 200, 72, 72, 0);
    check_sums(type, 67, 48, 16, 0);
    check_sums(type, 3, 7, 2, 0);
    check_sums(type, 65, 32, 8, 4); // no packs are loaded
  }
}
