/// Rows to experts and back, one pass each: every row of a token is read once.

#include "core/level/math.hpp"
#include "core/level/table.hpp"
#include "core/level/transpose.hpp"

#include <cstring>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace mh::kernels::MH_LEVEL {

namespace {

template <class T>
T* row(void* x, int64_t index, int64_t columns) {
  return static_cast<T*>(x) + index * columns;
}

template <class T>
const T* row(const void* x, int64_t index, int64_t columns) {
  return static_cast<const T*>(x) + index * columns;
}

/// Copies past the caches, into whole lines.
inline void stream(void* to, const void* from, size_t bytes) {
#ifdef __AVX2__
  auto* next = static_cast<__m256i*>(to);
  const auto* source = static_cast<const __m256i*>(from);
  for (size_t i = 0; i < bytes / sizeof(__m256i); ++i) {
    _mm256_stream_si256(next + i, _mm256_loadu_si256(source + i));
  }
#else
  std::memcpy(to, from, bytes);
#endif
}

/// Makes streamed stores visible to other threads from here on.
inline void end_stream() {
#ifdef __AVX2__
  _mm_sfence();
#endif
}

template <class T>
void scatter(const ExpertCall& c, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const T* from = row<T>(c.tokens, t, c.columns);
    for (int64_t j = t * c.choices; j < (t + 1) * c.choices; ++j) {
      if (c.slot[j] < 0) {
        continue;
      }
      T* to = row<T>(c.to_slots, c.slot[j], c.columns);
      const size_t bytes = static_cast<size_t>(c.columns) * sizeof(T);
      if (c.streams) {
        stream(to, from, bytes);
        continue;
      }
      if (c.weight == nullptr) {
        std::memcpy(to, from, bytes);
        continue;
      }
      const float weight = c.weight[j];
#pragma omp simd
      for (int64_t i = 0; i < c.columns; ++i) {
        to[i] = narrow<T>(wide(from[i]) * weight);
      }
    }
  }
  end_stream();
}

/// Rounded where T is narrower.
inline void round_row(float* out, const float* x, int64_t n) {
  std::memcpy(out, x, static_cast<size_t>(n) * sizeof(float));
}

inline void round_row(Bf16* out, const float* x, int64_t n) {
  narrow_row(out, x, n);
}

constexpr int kTogether = 8; // rows that are added in one pass

/// Rows of some of a token's experts, and their weights.
template <class T>
struct Weighed {
  const T* row[kTogether];
  float weight[kTogether];
};

#ifdef __AVX512BF16__
/// to = the first `kRows` rows, weighted; `first`: columns of the rows. Even and odd columns are
/// added apart, which widens both at the cost of one. Returns how many columns it did.
template <int kRows>
int64_t add_halves(Bf16* to, const Weighed<Bf16>& some, int64_t first, int64_t count) {
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    __m512 even = _mm512_setzero_ps(), odd = even;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const TileWords two = load_words(some.row[r] + first + i);
      const __m512 weight = _mm512_set1_ps(some.weight[r]);
      even = _mm512_fmadd_ps(std::bit_cast<__m512>(two << 16), weight, even);
      odd = _mm512_fmadd_ps(std::bit_cast<__m512>(two & 0xffff0000U), weight, odd);
    }
    _mm512_storeu_si512(to + i, interleave(narrow(even, odd)));
  }
  return i;
}
#endif

/// to = from, where there is one, + the first `kRows` rows, weighted; `first`: columns of the rows.
template <int kRows, class T, class Out>
void add_rows(Out* to, const float* from, const Weighed<T>& some, int64_t first, int64_t count) {
  constexpr int64_t kStep = 64; // sums that stay in registers
  int64_t i = 0;
#ifdef __AVX512BF16__
  if constexpr (sizeof(T) == 2 && sizeof(Out) == 2) {
    i = from == nullptr ? add_halves<kRows>(to, some, first, count) : 0;
  }
#endif
  for (; i + kStep <= count; i += kStep) {
    float sum[kStep];
#pragma omp simd
    for (int64_t l = 0; l < kStep; ++l) {
      float s = from == nullptr ? 0 : from[i + l];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        s += wide(some.row[r][first + i + l]) * some.weight[r];
      }
      sum[l] = s;
    }
    round_row(to + i, sum, kStep);
  }
  for (; i < count; ++i) {
    float s = from == nullptr ? 0 : from[i];
    for (int r = 0; r < kRows; ++r) {
      s += wide(some.row[r][first + i]) * some.weight[r];
    }
    to[i] = narrow<Out>(s);
  }
}

template <class T, class Out>
void add_rows(
    Out* to, const float* from, const Weighed<T>& some, int rows, int64_t first, int64_t count
) {
  using Add = void (*)(Out*, const float*, const Weighed<T>&, int64_t, int64_t);
  constexpr Add kAdd[] = {
      add_rows<0, T, Out>,
      add_rows<1, T, Out>,
      add_rows<2, T, Out>,
      add_rows<3, T, Out>,
      add_rows<4, T, Out>,
      add_rows<5, T, Out>,
      add_rows<6, T, Out>,
      add_rows<7, T, Out>,
      add_rows<kTogether, T, Out>};
  kAdd[rows](to, from, some, first, count);
}

template <class T>
void gather(const ExpertCall& c, int64_t begin, int64_t end) {
  constexpr int64_t kBlock = 512; // sums that stay in the first cache
  float sum[kBlock];
  for (int64_t t = begin; t < end; ++t) {
    T* to = row<T>(c.to_tokens, t, c.columns);
    for (int64_t first = 0; first < c.columns; first += kBlock) {
      const int64_t count = c.columns - first < kBlock ? c.columns - first : kBlock;
      Weighed<T> some;
      const float* before = nullptr;
      int rows = 0;
      for (int64_t j = t * c.choices; j < (t + 1) * c.choices; ++j) {
        if (c.slot[j] < 0) {
          continue;
        }
        if (rows == kTogether) {
          add_rows(sum, before, some, rows, first, count);
          before = sum;
          rows = 0;
        }
        some.row[rows] = row<T>(c.slots, c.slot[j], c.columns);
        some.weight[rows] = c.weight == nullptr ? 1.0F : c.weight[j];
        ++rows;
      }
      add_rows(to + first, before, some, rows, first, count);
    }
  }
}

template <class T>
void backward(const ExpertCall& c, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const T* dy = row<T>(c.tokens, t, c.columns);
    for (int64_t j = t * c.choices; j < (t + 1) * c.choices; ++j) {
      if (c.slot[j] < 0) {
        c.weight_change[j] = 0;
        continue;
      }
      const T* y = row<T>(c.slots, c.slot[j], c.columns);
      float dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t i = 0; i < c.columns; ++i) {
        dot += wide(dy[i]) * wide(y[i]);
      }
      c.weight_change[j] = dot;
      T* to = row<T>(c.to_slots, c.slot[j], c.columns);
      const float weight = c.weight[j];
#pragma omp simd
      for (int64_t i = 0; i < c.columns; ++i) {
        to[i] = narrow<T>(wide(dy[i]) * weight);
      }
    }
  }
}

} // namespace

const ExpertKernels& expert_kernels_bf16() {
  static const ExpertKernels kKernels = {scatter<Bf16>, gather<Bf16>, backward<Bf16>};
  return kKernels;
}

const ExpertKernels& expert_kernels_fp32() {
  static const ExpertKernels kKernels = {scatter<float>, gather<float>, backward<float>};
  return kKernels;
}

} // namespace mh::kernels::MH_LEVEL
