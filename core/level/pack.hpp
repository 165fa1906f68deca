#pragma once
/// Copies of tiles in the layouts that products read. T is what is multiplied, I what lies in
/// memory; rows from `count` to `padded` become zeros.

#include "core/level/math.hpp"
#include "core/level/transpose.hpp"

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
      const I* from = x + r * stride;
      const I* next = r + 1 < count ? from + stride : from;
      const bool one = r < count;
      const bool two = r + 1 < count;
      auto* to = reinterpret_cast<uint32_t*>(out + r * dim);
#pragma omp simd
      for (int64_t d = 0; d < dim; ++d) {
        const uint32_t low = one ? as<T>(from[d]).bits : 0U;
        const uint32_t high = two ? as<T>(next[d]).bits : 0U;
        to[d] = low | high << 16;
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
  const int64_t words = dim / kPairs;
  const int64_t whole_rows = sizeof(T) == sizeof(I) ? count / kWords * kWords : 0;
  const int64_t whole_words = words / kWords * kWords;
  const auto copy = [&](int64_t r, int64_t first) {
    for (int64_t d = first * kPairs; d < words * kPairs; d += kPairs) {
      for (int64_t i = 0; i < kPairs; ++i) {
        out[d * ld + r * kPairs + i] = r < count ? as<T>(x[r * stride + d + i]) : T{};
      }
    }
  };
  for (int64_t r = 0; r < whole_rows; r += kWords) {
    for (int64_t w = 0; w < whole_words; w += kWords) {
      transpose_words(out + (w * ld + r) * kPairs, ld, [&](int64_t i) {
        return load_words(x + (r + i) * stride + w * kPairs);
      });
    }
    for (int64_t i = 0; i < kWords; ++i) {
      copy(r + i, whole_words);
    }
  }
  for (int64_t r = whole_rows; r < padded; ++r) {
    copy(r, 0);
  }
}

/// Xᵀ as a left operand: [dim, ld], of which columns up to `padded` are written.
template <class T, class I>
void pack_transposed(
    T* out, const I* x, int64_t stride, int64_t count, int64_t padded, int64_t dim, int64_t ld
) {
  constexpr int64_t kPairs = kPair<T>;
  const int64_t whole = sizeof(T) == sizeof(I) ? count / (kWords * kPairs) * kWords * kPairs : 0;
  const int64_t whole_dim = dim / kWords * kWords;
  for (int64_t r = 0; r < whole; r += kWords * kPairs) {
    for (int64_t d = 0; d < whole_dim; d += kWords) {
      transpose_words(out + d * ld + r, ld / kPairs, [&](int64_t i) {
        const I* from = x + (r + i * kPairs) * stride + d;
        if constexpr (kPairs == 2) {
          return load_pairs(from, from + stride);
        } else {
          return load_words(from);
        }
      });
    }
  }
  for (int64_t d = 0; d < dim; ++d) {
    for (int64_t r = d < whole_dim ? whole : 0; r < padded; ++r) {
      out[d * ld + r] = r < count ? as<T>(x[r * stride + d]) : T{};
    }
  }
}

} // namespace mh::kernels::MH_LEVEL
