#pragma once
/// Straight-line float arithmetic that compilers turn into vectors: conversions and exponentials.
///
/// Every file of this folder is compiled once per instruction set (`MH_LEVEL`), in a namespace of
/// its own, and includes no LibTorch header: an inline function shared with other code could end up
/// as the copy that needs AVX512.

#include "core/level/attention_call.hpp"

#include <bit>
#include <cstdint>
#include <limits>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

namespace mh::kernels::MH_LEVEL {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLog2e = 1.44269504088896341F;
constexpr float kLn2 = 0.69314718055994531F;

inline float wide(float x) {
  return x;
}

inline float wide(Bf16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

/// Rounds to nearest, ties to even; a NaN stays one.
inline uint32_t bf16_bits(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  return (bits & 0x7fffffffU) > 0x7f800000U ? 0x7fc0U : rounded;
}

template <class T>
inline T narrow(float x);

template <>
inline float narrow<float>(float x) {
  return x;
}

template <>
inline Bf16 narrow<Bf16>(float x) {
  return {static_cast<uint16_t>(bf16_bits(x))};
}

#ifdef __AVX512BF16__
/// All 16 lanes put together, halves upon halves.
template <class Put>
inline float fold(__m512 x, const Put& put) {
  x = put(x, __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
  x = put(x, __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
  x = put(x, __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
  x = put(x, __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
  return x[0];
}

/// 32 of them, the 16 of `low` first. Numbers below 2^-126 become 0.
inline __m512i narrow(__m512 low, __m512 high) {
  return std::bit_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

/// Makes 16 pairs of 16 elements of one row and 16 of another.
inline __m512i interleave(__m512i rows) {
  using Lanes = uint16_t __attribute__((vector_size(64)));
  const auto x = std::bit_cast<Lanes>(rows);
  // clang-format off
  return std::bit_cast<__m512i>(__builtin_shufflevector(
      x, x, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31));
  // clang-format on
}
#endif

/// A row of them.
inline void narrow_row(Bf16* out, const float* x, int64_t n) {
  int64_t i = 0;
#ifdef __AVX512BF16__
  for (; i + 32 <= n; i += 32) {
    const __m512 low = _mm512_loadu_ps(x + i), high = _mm512_loadu_ps(x + i + 16);
    _mm512_storeu_si512(out + i, narrow(low, high));
  }
#endif
#pragma omp simd
  for (int64_t j = i; j < n; ++j) {
    out[j] = narrow<Bf16>(x[j]);
  }
}

/// 2^x to 2e-7 relative; 0 below -126, for -inf too.
inline float exp2_fast(float x) {
  const float bounded = x < 127.5F ? x : 127.5F;
  constexpr float kRound = 12582912.0F; // 1.5 * 2^23: adding it rounds to a whole number
  const float shifted = bounded + kRound;
  const float f = bounded - (shifted - kRound);
  float p = 1.5403530e-4F;
  p = p * f + 1.3333558e-3F;
  p = p * f + 9.6181291e-3F;
  p = p * f + 5.5504109e-2F;
  p = p * f + 2.4022651e-1F;
  p = p * f + 6.9314718e-1F;
  p = p * f + 1.0F;
  const uint32_t power = std::bit_cast<uint32_t>(shifted) << 23;
  const float y = std::bit_cast<float>(std::bit_cast<uint32_t>(p) + power);
  return x < -126.0F ? 0.0F : y;
}

#ifdef __AVX512BF16__
/// 2^x of 16 numbers below 127, for what becomes bf16, which rounds by 2e-3: to 4e-6 relative,
/// exact for whole numbers; 0 for -inf.
inline __m512 exp2_coarse(__m512 x) {
  constexpr __mmask16 kAll = 0xffff; // g++ 12 warns of the functions that take none
  const __m512 f = _mm512_maskz_reduce_ps(kAll, x, _MM_FROUND_TO_NEG_INF);
  __m512 p = _mm512_set1_ps(1.3555747e-2F); // polynomial of degree 4, with p(0) = 1 and p(1) = 2
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.2032369e-2F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4137976e-1F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9303212e-1F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0F));
  return _mm512_maskz_scalef_ps(kAll, p, x);
}
#endif

inline float exp_fast(float x) {
  return exp2_fast(x * kLog2e);
}

/// tanh to 3e-7 relative: below 0.8 the continued fraction of Lambert, cut off, beyond exponentials.
inline float tanh_fast(float x) {
  const float size = x < 0 ? -x : x;
  const float square = x * x;
  const float small = x * (945 + square * (105 + square)) / (945 + square * (420 + square * 15));
  const float large = 1 - 2 / (1 + exp_fast(2 * size));
  return size < 0.8F ? small : (x < 0 ? -large : large);
}

} // namespace mh::kernels::MH_LEVEL
