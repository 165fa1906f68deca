/// Rows to experts and back, one pass each: every row of a token is read once.

#include "core/kernels/level/math.hpp"
#include "core/kernels/level/table.hpp"

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

/// What was streamed is seen by other threads from here on.
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

constexpr int kTogether = 4; // rows that are added in one pass

/// Rows of some of a token's experts, and their weights.
template <class T>
struct Weighed {
  const T* row[kTogether];
  float weight[kTogether];
};

/// sum += the first `kRows` of them, weighted; `first`: columns.
template <int kRows, class T>
void add_rows(float* sum, const Weighed<T>& from, int64_t first, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    float s = sum[i];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      s += wide(from.row[r][first + i]) * from.weight[r];
    }
    sum[i] = s;
  }
}

template <class T>
void add_rows(float* sum, const Weighed<T>& from, int rows, int64_t first, int64_t count) {
  constexpr void (*kAdd[])(float*, const Weighed<T>&, int64_t, int64_t) = {
      add_rows<1, T>, add_rows<2, T>, add_rows<3, T>, add_rows<kTogether, T>};
  if (rows > 0) {
    kAdd[rows - 1](sum, from, first, count);
  }
}

template <class T>
void gather(const ExpertCall& c, int64_t begin, int64_t end) {
  constexpr int64_t kBlock = 512; // sums that stay in the first cache
  float sum[kBlock];
  for (int64_t t = begin; t < end; ++t) {
    T* to = row<T>(c.to_tokens, t, c.columns);
    for (int64_t first = 0; first < c.columns; first += kBlock) {
      const int64_t count = c.columns - first < kBlock ? c.columns - first : kBlock;
      std::memset(sum, 0, sizeof(sum));
      Weighed<T> some;
      int rows = 0;
      for (int64_t j = t * c.choices; j < (t + 1) * c.choices; ++j) {
        if (c.slot[j] < 0) {
          continue;
        }
        some.row[rows] = row<T>(c.slots, c.slot[j], c.columns);
        some.weight[rows] = c.weight == nullptr ? 1.0F : c.weight[j];
        if (++rows == kTogether) {
          add_rows(sum, some, rows, first, count);
          rows = 0;
        }
      }
      add_rows(sum, some, rows, first, count);
      round_row(to + first, sum, count);
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
