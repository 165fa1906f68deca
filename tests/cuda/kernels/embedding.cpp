// Gradients of an embedding, on a CPU, against float64.

#include "tests/cuda/kernels/memory.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

using namespace mh;
using cuda::GpuType;
using test::Elements;

namespace {

void check_embedding(GpuType type, const std::vector<int64_t>& ids, int64_t columns, size_t gap) {
  std::mt19937 random(1);
  constexpr int64_t kEntries = 9;
  const auto rows = static_cast<int64_t>(ids.size());
  Elements x(type, rows * columns, gap), table(GpuType::fp32, kEntries * columns);
  x.fill(random, 0, 1);
  table.fill(random, 0, 1);
  const Elements before = table.copy();
  std::vector<int64_t> order(ids.size()), sorted;
  std::iota(order.begin(), order.end(), 0);
  const auto id = [&](int64_t i) { return ids[static_cast<size_t>(i)]; };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return id(a) < id(b); });
  for (const int64_t i : order) {
    sorted.push_back(id(i));
  }
  const cuda::EmbeddingLaunch call{
      .type = type,
      .rows = rows,
      .columns = columns,
      .ids = sorted.data(),
      .order = order.data(),
      .x = x.data(),
      .table = static_cast<float*>(table.data())};
  CHECK(megahost_cuda_table()->embedding(call, nullptr) == nullptr);
  double worst = 0;
  for (int64_t place = 0; place < table.count(); ++place) {
    double wanted = before[place];
    for (int64_t row = 0; row < rows; ++row) {
      wanted += id(row) == place / columns ? x[row * columns + place % columns] : 0.0;
    }
    worst = std::max(worst, std::abs(table[place] - wanted));
  }
  CHECK(worst < 1e-5);
}

} // namespace

TEST_CASE("rows are added to those of a table that their ids name; ids below 0 name none") {
  const std::vector<int64_t> some{3, -1, 3, 8, 0, 3, -1, 0, 3, 3, 3, 8};
  for (const GpuType type : {GpuType::fp32, GpuType::bf16}) {
    check_embedding(type, some, 2056, 0);
    check_embedding(type, some, 7, 0);
    check_embedding(type, some, 16, 4); // no packs are loaded
    check_embedding(type, {-1}, 16, 0);
  }
}
