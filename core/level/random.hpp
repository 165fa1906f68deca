#pragma once
/// `mh::philox` for many counters at a time: dropout's masks and stochastic rounding.

#include <cstdint>
#include <cstring>
#include <utility>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace mh::kernels::MH_LEVEL {

/// One word of as many counters as a register holds, each in the lower half of a lane. Upper halves
/// hold anything, because a product reads lower halves only.
#if defined(__AVX512F__)
using CounterWords = uint64_t __attribute__((vector_size(64)));
#elif defined(__AVX2__)
using CounterWords = uint64_t __attribute__((vector_size(32)));
#else
using CounterWords = uint64_t __attribute__((vector_size(16)));
#endif
constexpr int64_t kCounters = sizeof(CounterWords) / sizeof(uint64_t);

/// The product of lower halves. Compilers multiply all 64 bits, at several times the cost.
inline CounterWords multiply_low(CounterWords x, uint32_t y) {
#if defined(__AVX512F__)
  const __m512i factor = _mm512_set1_epi64(y);
  constexpr __mmask8 kAll = 0xff; // g++ 12 warns of the function that takes none
  return reinterpret_cast<CounterWords>(
      _mm512_maskz_mul_epu32(kAll, reinterpret_cast<__m512i>(x), factor)
  );
#elif defined(__AVX2__)
  const __m256i factor = _mm256_set1_epi64x(y);
  return reinterpret_cast<CounterWords>(_mm256_mul_epu32(reinterpret_cast<__m256i>(x), factor));
#elif defined(__x86_64__)
  const __m128i factor = _mm_set1_epi64x(y);
  return reinterpret_cast<CounterWords>(_mm_mul_epu32(reinterpret_cast<__m128i>(x), factor));
#else
  return (x & 0xffffffffU) * y;
#endif
}

inline uint64_t multiply_low(uint64_t x, uint32_t y) {
  return uint64_t{static_cast<uint32_t>(x)} * y;
}

/// The four words of counters: of many as `CounterWords`, or a number that all of them share.
template <class A, class B, class C, class D>
struct Counters {
  A a;
  B b;
  C c;
  D d;
};
template <class A, class B, class C, class D>
Counters(A, B, C, D) -> Counters<A, B, C, D>;

/// A word computed from shared words is a shared word, so the first rounds cost little.
template <class A, class B, class C, class D>
inline auto philox_round(const Counters<A, B, C, D>& x, uint64_t key, uint32_t round) {
  const uint64_t low = static_cast<uint32_t>(key) + round * 0x9E3779B9U;
  const uint64_t high = static_cast<uint32_t>(key >> 32) + round * 0xBB67AE85U;
  const auto p0 = multiply_low(x.a, 0xD2511F53U);
  const auto p1 = multiply_low(x.c, 0xCD9E8D57U);
  return Counters{(p1 >> 32) ^ x.b ^ low, p1, (p0 >> 32) ^ x.d ^ high, p0};
}

/// Words of the counters (group, token, sample); one of group and token is `CounterWords`, and
/// lower halves of both count.
template <class Group, class Token>
inline auto philox(uint64_t key, Group group, Token token, uint64_t sample) {
  const Counters start{group, token, sample, sample >> 32};
  const auto two = philox_round(philox_round(start, key, 0), key, 1);
  auto all = philox_round(philox_round(two, key, 2), key, 3); // no word is shared any more
#pragma GCC unroll 6
  for (uint32_t round = 4; round < 10; ++round) {
    all = philox_round(all, key, round);
  }
  return all;
}

/// Lower halves of `low` and of `high` side by side, as 32-bit words.
inline CounterWords joined(CounterWords low, CounterWords high) {
  return (low & 0xffffffffU) | high << 32;
}

constexpr int64_t kDrawn = 64; // features, or tokens, whose words are made at a time

/// Room for the words of `kDrawn` features and of others that share a counter with them.
using FeatureWords = uint32_t[kDrawn + 4 * kCounters];

/// Words of counters from `group` on, in the order of features.
template <size_t... I>
inline void group_words(
    uint64_t key,
    uint64_t group,
    uint32_t token,
    uint64_t sample,
    uint32_t* out,
    std::index_sequence<I...> /*counters*/
) {
  const auto x = philox(key, group + CounterWords{I...}, uint64_t{token}, sample);
  const CounterWords first = joined(x.a, x.b);
  const CounterWords second = joined(x.c, x.d);
  const auto merge = [&](auto half) {
    constexpr size_t kFrom = decltype(half)::value * kCounters / 2;
    const CounterWords words =
        __builtin_shufflevector(first, second, (kFrom + I / 2 + I % 2 * kCounters)...);
    std::memcpy(out + 4 * kFrom, &words, sizeof(words));
  };
  merge(std::integral_constant<size_t, 0>());
  merge(std::integral_constant<size_t, 1>());
}

/// The words of `kDrawn` features from `feature` on, of one token and sample.
inline const uint32_t*
feature_words(uint64_t key, int64_t feature, uint32_t token, uint64_t sample, FeatureWords& room) {
  constexpr auto kAll = std::make_index_sequence<kCounters>();
  const auto group = static_cast<uint64_t>(feature / 4);
  for (int64_t i = 0; i < kDrawn / 4; i += kCounters) {
    group_words(key, group + static_cast<uint64_t>(i), token, sample, room + 4 * i, kAll);
  }
  const int64_t skipped = feature % 4;
  if (skipped != 0) {
    group_words(key, group + kDrawn / 4, token, sample, room + kDrawn, kAll);
  }
  return room + skipped;
}

/// The words [word of its counter] of a group of four features, of `kDrawn` tokens.
inline void token_words(
    uint64_t key,
    uint64_t group,
    const int32_t* tokens,
    uint64_t sample,
    uint32_t (&words)[4][kDrawn]
) {
  for (int64_t i = 0; i < kDrawn; i += 2 * kCounters) {
    CounterWords pairs;
    std::memcpy(&pairs, tokens + i, sizeof(pairs));
    const auto even = philox(key, group, pairs, sample);
    const auto odd = philox(key, group, pairs >> 32, sample);
    const CounterWords made[4] = {
        joined(even.a, odd.a), joined(even.b, odd.b), joined(even.c, odd.c), joined(even.d, odd.d)};
    for (int64_t word = 0; word < 4; ++word) {
      std::memcpy(&words[word][i], &made[word], sizeof(made[word]));
    }
  }
}

} // namespace mh::kernels::MH_LEVEL
