#pragma once
/// Copies of tiles in the layouts that products read. T is what is multiplied, I what lies in
/// memory; rows from `count` to `padded` become zeros.

#include "core/kernels/level/math.hpp"

namespace mh::kernels::MH_LEVEL {

/// Rows of a matrix that lie side by side in one 32-bit word.
template <class T>
constexpr int64_t kPair = sizeof(T) == 2 ? 2 : 1;

template <class T, class I>
inline T as(I x) {
  if constexpr (sizeof(T) == sizeof(I)) {
    return std::bit_cast<T>(x);
  } else {
    return narrow<T>(wide(x));
  }
}

template <class I>
inline const I* row(const Strided& x, int64_t s, int64_t b, int64_t h) {
  return static_cast<const I*>(x.data) + s * x.seq + b * x.batch + h * x.head;
}

template <class I>
inline I* row_out(const Strided& x, int64_t s, int64_t b, int64_t h) {
  return static_cast<I*>(x.data) + s * x.seq + b * x.batch + h * x.head;
}

/// X as it is: [padded, dim].
template <class T, class I>
void pack_rows(T* out, const I* x, int64_t stride, int64_t count, int64_t padded, int64_t dim) {
  for (int64_t r = 0; r < padded; ++r) {
    T* to = out + r * dim;
    const I* from = x + r * stride;
    for (int64_t d = 0; d < dim; ++d) {
      to[d] = r < count ? as<T>(from[d]) : T{};
    }
  }
}

/// X as the right operand of a product over rows: pairs of rows interleaved.
template <class T, class I>
void pack_right(T* out, const I* x, int64_t stride, int64_t count, int64_t padded, int64_t dim) {
  if constexpr (kPair<T> == 1) {
    pack_rows(out, x, stride, count, padded, dim);
  } else {
    for (int64_t r = 0; r < padded; r += 2) {
      T* to = out + r * dim;
      const I* from = x + r * stride;
      const I* next = r + 1 < count ? from + stride : from;
      const bool one = r < count;
      const bool two = r + 1 < count;
      for (int64_t d = 0; d < dim; ++d) {
        to[2 * d] = one ? as<T>(from[d]) : T{};
        to[2 * d + 1] = two ? as<T>(next[d]) : T{};
      }
    }
  }
}

/// Xᵀ as the right operand of a product over its columns: [dim / pair, ld] words, of which `padded`
/// columns are written.
template <class T, class I>
void pack_right_transposed(
    T* out, const I* x, int64_t stride, int64_t count, int64_t padded, int64_t dim, int64_t ld
) {
  constexpr int64_t kPairs = kPair<T>;
  for (int64_t d = 0; d < dim; d += kPairs) {
    T* to = out + d * ld;
    for (int64_t r = 0; r < padded; ++r) {
      for (int64_t i = 0; i < kPairs; ++i) {
        to[r * kPairs + i] = r < count ? as<T>(x[r * stride + d + i]) : T{};
      }
    }
  }
}

/// Xᵀ as a left operand: [dim, padded].
template <class T, class I>
void pack_transposed(
    T* out, const I* x, int64_t stride, int64_t count, int64_t padded, int64_t dim
) {
  for (int64_t d = 0; d < dim; ++d) {
    for (int64_t r = 0; r < padded; ++r) {
      out[d * padded + r] = r < count ? as<T>(x[r * stride + d]) : T{};
    }
  }
}

inline void product(
    const Products& p,
    int64_t m,
    int64_t n,
    int64_t k,
    int64_t lda,
    int64_t ldb,
    int64_t ldc,
    bool add,
    const Bf16* a,
    const Bf16* b,
    float* c
) {
  p.bf16(m, n, k, lda, ldb, ldc, add, a, b, c);
}

inline void product(
    const Products& p,
    int64_t m,
    int64_t n,
    int64_t k,
    int64_t lda,
    int64_t ldb,
    int64_t ldc,
    bool add,
    const float* a,
    const float* b,
    float* c
) {
  p.fp32(m, n, k, lda, ldb, ldc, add, a, b, c);
}

} // namespace mh::kernels::MH_LEVEL
