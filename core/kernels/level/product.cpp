/// Copies of blocks of matrices in the layout that small products read.

#include "core/kernels/level/pack.hpp"
#include "core/kernels/level/table.hpp"

namespace mh::kernels::MH_LEVEL {

namespace {

/// out [count, depth] = rows of x, or columns where x is transposed.
template <class T, class I>
void left(const PackCall& c, T* out) {
  const auto* x = static_cast<const I*>(c.x);
  if (!c.transposed) {
    pack_rows(out, x, c.stride, c.count, c.count, c.depth);
    return;
  }
  // x [depth, count]: squares of 16 keep both sides in cache.
  constexpr int64_t kSide = 16;
  for (int64_t i = 0; i < c.count; i += kSide) {
    const int64_t rows = c.count - i < kSide ? c.count - i : kSide;
    for (int64_t k = 0; k < c.depth; k += kSide) {
      const int64_t columns = c.depth - k < kSide ? c.depth - k : kSide;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t s = 0; s < columns; ++s) {
          out[(i + r) * c.depth + k + s] = as<T>(x[(k + s) * c.stride + i + r]);
        }
      }
    }
  }
}

/// out [depth / pair][padded][pair]: x [depth, count], or [count, depth] where it is transposed.
template <class T, class I>
void right(const PackCall& c, T* out) {
  const auto* x = static_cast<const I*>(c.x);
  if (c.transposed) {
    pack_right_transposed(out, x, c.stride, c.count, c.padded, c.depth, c.padded);
    return;
  }
  constexpr int64_t kPairs = kPair<T>;
  for (int64_t k = 0; k < c.depth; k += kPairs) {
    T* to = out + k * c.padded;
    for (int64_t j = 0; j < c.count; ++j) {
      for (int64_t i = 0; i < kPairs; ++i) {
        to[j * kPairs + i] = as<T>(x[(k + i) * c.stride + j]);
      }
    }
    for (int64_t j = c.count * kPairs; j < c.padded * kPairs; ++j) {
      to[j] = T{};
    }
  }
}

} // namespace

const PackKernels& pack_kernels() {
  static constexpr PackKernels kKernels = {
      .left_bf16 = [](const PackCall& c,
                      void* out) { left<Bf16, Bf16>(c, static_cast<Bf16*>(out)); },
      .left_fp32 = [](const PackCall& c,
                      void* out) { left<float, float>(c, static_cast<float*>(out)); },
      .right_bf16 = [](const PackCall& c,
                       void* out) { right<Bf16, Bf16>(c, static_cast<Bf16*>(out)); },
      .right_fp32 = [](const PackCall& c,
                       void* out) { right<float, float>(c, static_cast<float*>(out)); }};
  return kKernels;
}

} // namespace mh::kernels::MH_LEVEL
