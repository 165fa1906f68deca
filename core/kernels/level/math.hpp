#pragma once
/// Straight-line float arithmetic that compilers turn into vectors: conversions and exponentials.
///
/// Every file of this folder is compiled once per instruction set (`MH_LEVEL`), in a namespace of
/// its own, and includes no LibTorch header: an inline function shared with other code could end up
/// as the copy that needs AVX512.

#include "core/kernels/attention_call.hpp"

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

/// A row of them. Where the CPU rounds, numbers below 2^-126 become 0.
inline void narrow_row(Bf16* out, const float* x, int64_t n) {
  int64_t i = 0;
#ifdef __AVX512BF16__
  for (; i + 32 <= n; i += 32) {
    const auto low = _mm512_loadu_ps(x + i), high = _mm512_loadu_ps(x + i + 16);
    _mm512_storeu_si512(out + i, std::bit_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
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

inline float exp_fast(float x) {
  return exp2_fast(x * kLog2e);
}

} // namespace mh::kernels::MH_LEVEL
