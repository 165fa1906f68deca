#pragma once
/// Elements in packs of 16 bytes and more, bf16 as its bits, and the random words of `mh::philox`.
/// All of it is arithmetic of whole numbers, or of floats one operation at a time, so a GPU and a
/// CPU have the same bits.

#include "core/base/bf16.hpp"
#include "core/cuda/language.cuh"

namespace mh::cuda {

/// N neighbours. They are moved by words of 16 bytes where there are so many of them.
template <class T, int N>
struct Pack {
  T values[N];
};

template <size_t kBytes>
struct WordOf {
  using Type = uint4;
};

template <>
struct WordOf<8> {
  using Type = uint2;
};

template <>
struct WordOf<4> {
  using Type = unsigned;
};

template <>
struct WordOf<2> {
  using Type = unsigned short;
};

template <class T, int N>
struct PackWords {
  using Word = typename WordOf<sizeof(Pack<T, N>)>::Type;
  static constexpr int kCount = sizeof(Pack<T, N>) / sizeof(Word);
  Word words[kCount];
};

/// Reads neighbours that are read once, past the innermost cache.
template <class T, int N>
__device__ inline Pack<T, N> read_pack(const void* from, int64_t at) {
  using Words = PackWords<T, N>;
  using Own = Pack<T, N>;
  const auto* words =
      reinterpret_cast<const typename Words::Word*>(static_cast<const T*>(from) + at);
  Words raw;
  for (int i = 0; i < raw.kCount; ++i) {
    raw.words[i] = __ldcg(words + i);
  }
  return __builtin_bit_cast(Own, raw);
}

template <class T, int N>
__device__ inline void write_pack(const Pack<T, N>& pack, void* to, int64_t at) {
  using Words = PackWords<T, N>;
  const auto raw = __builtin_bit_cast(Words, pack);
  auto* words = reinterpret_cast<typename Words::Word*>(static_cast<T*>(to) + at);
  for (int i = 0; i < raw.kCount; ++i) {
    __stcg(words + i, raw.words[i]);
  }
}

__device__ inline float wide(float x) {
  return x;
}

__device__ inline float wide(Bf16 x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16);
}

/// Rounds to nearest, ties to even; a NaN stays one.
__device__ inline uint32_t bf16_bits(float x) {
  const auto bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  return (bits & 0x7fffffffU) > 0x7f800000U ? 0x7fc0U : rounded;
}

__device__ inline void narrow(float x, float& to) {
  to = x;
}

__device__ inline void narrow(float x, Bf16& to) {
  to = {static_cast<uint16_t>(bf16_bits(x))};
}

/// Up with the probability that makes the mean right: 16 random bits are added to those that are
/// cut off. Infinities and NaNs stay what they are.
__device__ inline Bf16 narrow_randomly(float x, uint32_t random) {
  const auto bits = __builtin_bit_cast(uint32_t, x);
  const bool finite = (bits & 0x7f800000U) != 0x7f800000U;
  return {static_cast<uint16_t>(finite ? (bits + (random & 0xffffU)) >> 16 : bf16_bits(x))};
}

template <class T, int N>
__device__ inline void load(const void* from, int64_t at, float (&to)[N]) {
  const auto pack = read_pack<T, N>(from, at);
  for (int i = 0; i < N; ++i) {
    to[i] = wide(pack.values[i]);
  }
}

template <class T, int N>
__device__ inline void store(const float (&from)[N], void* to, int64_t at) {
  Pack<T, N> pack;
  for (int i = 0; i < N; ++i) {
    narrow(from[i], pack.values[i]);
  }
  write_pack(pack, to, at);
}

template <int N>
__device__ inline void store_randomly(
    const float (&from)[N], const uint32_t (&words)[N], int shift, void* to, int64_t at
) {
  Pack<Bf16, N> pack;
  for (int i = 0; i < N; ++i) {
    pack.values[i] = narrow_randomly(from[i], words[i] >> shift);
  }
  write_pack(pack, to, at);
}

/// Whether packs may be loaded from there.
__host__ __device__ inline bool aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

constexpr int kLanes = 32; ///< threads that run together

/// The sum of what the 32 lanes of this thread have, in one order. All threads of the block come
/// here.
__device__ inline float sum_of_lanes(float own) {
  __shared__ float parts[kThreads];
  __syncthreads(); // the sum before this one has been read
  parts[threadIdx.x] = own;
  __syncthreads();
  const unsigned first = threadIdx.x / kLanes * kLanes;
  float sum = 0;
  for (unsigned i = 0; i < kLanes; ++i) {
    sum += parts[first + i];
  }
  return sum;
}

struct RandomWords {
  uint32_t a, b, c, d;
};

/// The four words of counter (group, row, sample), of group and row the lower halves.
__device__ inline RandomWords philox(uint64_t key, int64_t group, uint32_t row, uint64_t sample) {
  RandomWords x{
      static_cast<uint32_t>(group),
      row,
      static_cast<uint32_t>(sample),
      static_cast<uint32_t>(sample >> 32)};
  auto low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * x.a, p1 = uint64_t{0xCD9E8D57} * x.c;
    x = {
        static_cast<uint32_t>(p1 >> 32) ^ x.b ^ low,
        static_cast<uint32_t>(p1),
        static_cast<uint32_t>(p0 >> 32) ^ x.d ^ high,
        static_cast<uint32_t>(p0)};
    low += 0x9E3779B9U;
    high += 0xBB67AE85U;
  }
  return x;
}

/// The words of N neighbours from `index` on, one for each: four share a counter. If N is more than
/// one, the first is at a multiple of four.
template <int N>
__device__ inline void
random_words(uint64_t key, int64_t index, uint32_t row, uint64_t sample, uint32_t (&words)[N]) {
  if constexpr (N == 1) {
    const RandomWords four = philox(key, index / 4, row, sample);
    const auto lane = static_cast<int>(index % 4);
    words[0] = lane == 0 ? four.a : lane == 1 ? four.b : lane == 2 ? four.c : four.d;
  } else {
    for (int i = 0; i < N; i += 4) {
      const RandomWords four = philox(key, (index + i) / 4, row, sample);
      words[i] = four.a;
      words[i + 1] = four.b;
      words[i + 2] = four.c;
      words[i + 3] = four.d;
    }
  }
}

} // namespace mh::cuda
