#pragma once
/// Transposes of 32-bit words, 16 by 16 in vector registers.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace mh::kernels::MH_LEVEL {

constexpr int64_t kWords = 16;
using TileWords = uint32_t __attribute__((vector_size(4 * kWords)));
using HalfWords = uint16_t __attribute__((vector_size(2 * kWords)));

inline TileWords load_words(const void* from) {
  TileWords words;
  std::memcpy(&words, from, sizeof(words));
  return words;
}

/// 16 words, each of an element of one row of 16-bit numbers and that of another above it.
inline TileWords load_pairs(const void* low, const void* high) {
  HalfWords first;
  HalfWords second;
  std::memcpy(&first, low, sizeof(first));
  std::memcpy(&second, high, sizeof(second));
  return __builtin_convertvector(first, TileWords) | __builtin_convertvector(second, TileWords)
                                                         << 16;
}

/// Swaps, between two rows that are S apart, the words that belong to the other.
template <size_t S, size_t... I>
inline void exchange(TileWords& a, TileWords& b, std::index_sequence<I...>) {
  const TileWords first = __builtin_shufflevector(a, b, ((I & S) != 0 ? kWords + I - S : I)...);
  b = __builtin_shufflevector(a, b, ((I & S) != 0 ? kWords + I : I + S)...);
  a = first;
}

template <size_t S>
inline void exchange_rows(TileWords (&rows)[kWords]) {
#pragma GCC unroll 16
  for (size_t i = 0; i < kWords; ++i) {
    if ((i & S) == 0) {
      exchange<S>(rows[i], rows[i + S], std::make_index_sequence<kWords>());
    }
  }
}

/// out + j * stride = word j of each of the 16 rows that `load` gives.
template <class Load>
inline void transpose_words(void* out, int64_t stride, const Load& load) {
  TileWords rows[kWords];
#pragma GCC unroll 16
  for (int64_t i = 0; i < kWords; ++i) {
    rows[i] = load(i);
  }
  exchange_rows<1>(rows);
  exchange_rows<2>(rows);
  exchange_rows<4>(rows);
  exchange_rows<8>(rows);
#pragma GCC unroll 16
  for (int64_t j = 0; j < kWords; ++j) {
    std::memcpy(static_cast<uint32_t*>(out) + j * stride, &rows[j], sizeof(rows[j]));
  }
}

} // namespace mh::kernels::MH_LEVEL
