// Rotary embedding of heads in several tensors, on a CPU, against float64.

#include "tests/cuda/kernels/memory.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

using namespace mh;
using cuda::GpuType;
using test::Elements;

namespace {

struct RotaryShape {
  int64_t dim, half, table_batch;
  size_t gap; ///< if it is not 0, no packs are loaded
};

constexpr int64_t kSeq = 3, kBatch = 2, kHeads[] = {2, 1, 2}, kAll = 5;

/// Heads of three tensors with room between them, the first two tensors' rotated.
void check_rotary(GpuType type, const RotaryShape& s, bool inverse, std::mt19937& random) {
  Elements table(GpuType::fp32, 2 * kSeq * s.table_batch * s.half);
  table.fill(random, 0, 1);
  const auto* cosine = static_cast<const float*>(table.data());
  const Elements y(type, kSeq * kBatch * kAll * s.dim, s.gap);
  std::vector<Elements> parts;
  cuda::RotaryLaunch call{
      .type = type,
      .rows = kSeq * kBatch,
      .batch = kBatch,
      .heads = kAll,
      .dim = s.dim,
      .half = s.half,
      .parts = {},
      .rotated = 2,
      .y = y.data(),
      .cosine = cosine,
      .sine = cosine + kSeq * s.table_batch * s.half,
      .table_batch = s.table_batch,
      .inverse = inverse};
  for (const int64_t heads : kHeads) { // [batch, seq, heads + 1, dim]: samples outermost
    const int64_t row = (heads + 1) * s.dim;
    auto& part = parts.emplace_back(type, kBatch * kSeq * row, s.gap);
    part.fill(random, 0, 1);
    call.parts[parts.size() - 1] = {part.data(), heads, row, kSeq * row, s.dim};
  }
  CHECK(megahost_cuda_table()->rotary(call, nullptr) == nullptr);
  double worst = 0;
  for (int64_t place = 0; place < y.count(); ++place) {
    const int64_t i = place % s.dim, token = place / s.dim / kAll / kBatch;
    const int64_t sample = place / s.dim / kAll % kBatch;
    int64_t head = place / s.dim % kAll;
    size_t part = 0;
    for (; head >= kHeads[part]; ++part) {
      head -= kHeads[part];
    }
    const auto& from = call.parts[part];
    const int64_t at = token * from.seq + sample * from.sample + head * from.head;
    double wanted = parts[part][at + i];
    if (part < 2 && i < 2 * s.half) {
      const int64_t pair = i % s.half;
      const int64_t turn =
          (token * s.table_batch + (s.table_batch == 1 ? 0 : sample)) * s.half + pair;
      const double sine = (inverse ? -1.0 : 1.0) * call.sine[turn] * (i < s.half ? -1 : 1);
      wanted =
          wanted * call.cosine[turn] + parts[part][at + (i < s.half ? i + s.half : pair)] * sine;
    }
    worst = std::max(worst, std::abs(y[place] - wanted) / (1 + std::abs(wanted)));
  }
  CHECK(worst < (type == GpuType::fp32 ? 1e-6 : 5e-3));
}

} // namespace

TEST_CASE("heads of the first tensors are rotated, those of the last copied") {
  std::mt19937 random(1);
  for (const GpuType type : {GpuType::fp32, GpuType::bf16}) {
    for (const RotaryShape& shape :
         {RotaryShape{64, 32, 1, 0},
          {64, 16, kBatch, 0},
          {6, 3, 1, 0},
          {7, 2, kBatch, 0},
          {32, 16, 1, 4}}) {
      for (const bool inverse : {false, true}) {
        CAPTURE(shape.dim);
        check_rotary(type, shape, inverse, random);
      }
    }
  }
}
