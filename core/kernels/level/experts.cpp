/// Rows to experts and back, one pass each: every row of a token is read once.

#include "core/kernels/level/math.hpp"
#include "core/kernels/level/table.hpp"

#include <cstring>

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

template <class T>
void scatter(const ExpertCall& c, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const T* from = row<T>(c.tokens, t, c.columns);
    for (int64_t j = t * c.choices; j < (t + 1) * c.choices; ++j) {
      if (c.slot[j] < 0) {
        continue;
      }
      T* to = row<T>(c.to_slots, c.slot[j], c.columns);
      if (c.weight == nullptr) {
        std::memcpy(to, from, static_cast<size_t>(c.columns) * sizeof(T));
        continue;
      }
      const float weight = c.weight[j];
#pragma omp simd
      for (int64_t i = 0; i < c.columns; ++i) {
        to[i] = narrow<T>(wide(from[i]) * weight);
      }
    }
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
      for (int64_t i = 0; i < count; ++i) {
        sum[i] = 0;
      }
      for (int64_t j = t * c.choices; j < (t + 1) * c.choices; ++j) {
        if (c.slot[j] < 0) {
          continue;
        }
        const T* from = row<T>(c.slots, c.slot[j], c.columns) + first;
        const float weight = c.weight == nullptr ? 1.0F : c.weight[j];
#pragma omp simd
        for (int64_t i = 0; i < count; ++i) {
          sum[i] += wide(from[i]) * weight;
        }
      }
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        to[first + i] = narrow<T>(sum[i]);
      }
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
