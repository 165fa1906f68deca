/// The vocabulary's softmax: what a row's loss needs in one read of the logits, and their gradient
/// written over them.

#include "core/cuda/kernels.cuh"
#include "core/cuda/numbers.cuh"

#include <math.h>

namespace mh::cuda {

namespace {

constexpr int kVocabPack = 8;

/// The maximum of numbers and the sum of exp(x - maximum).
struct TopSum {
  float top, sum;
};

__device__ TopSum joined(TopSum a, TopSum b) {
  const float top = a.top > b.top ? a.top : b.top;
  const float from_a = a.sum == 0 ? 0 : a.sum * expf(a.top - top);
  const float from_b = b.sum == 0 ? 0 : b.sum * expf(b.top - top);
  return {top, from_a + from_b};
}

/// A block reads one row.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) reduce_logits(VocabLaunch c) {
  __shared__ TopSum parts[kThreads];
  const int64_t row = blockIdx.x, base = row * c.columns;
  TopSum own{-INFINITY, 0};
  for (int64_t at = int64_t{threadIdx.x} * N; at < c.entries; at += kThreads * N) {
    float z[N];
    load<T>(c.z, base + at, z);
    float top = own.top;
    for (int i = 0; i < N; ++i) {
      z[i] = at + i < c.entries ? z[i] : -INFINITY;
      top = z[i] > top ? z[i] : top;
    }
    float sum = own.sum == 0 ? 0 : own.sum * expf(own.top - top);
    for (int i = 0; i < N; ++i) {
      sum += z[i] == -INFINITY ? 0 : expf(z[i] - top);
    }
    own = {top, sum};
  }
  parts[threadIdx.x] = own;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      parts[threadIdx.x] = joined(parts[threadIdx.x], parts[threadIdx.x + half]);
    }
  }
  if (threadIdx.x == 0) {
    const int64_t label = c.labels[row] - c.first;
    float target[1] = {0};
    if (label >= 0 && label < c.entries) {
      load<T>(c.z, base + label, target);
    }
    c.top[row] = parts[0].top;
    c.sum[row] = parts[0].sum;
    c.target[row] = target[0];
  }
}

/// Each thread has N neighbours of one row.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) write_gradient(VocabLaunch c) {
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (at >= c.rows * c.columns) {
    return;
  }
  const int64_t row = at / c.columns, column = at % c.columns;
  const int64_t label = c.labels[row] - c.first;
  const float lse = c.lse[row], scale = c.scale[row];
  float z[N];
  load<T>(c.z, at, z);
  for (int i = 0; i < N; ++i) {
    const float hit = column + i == label ? 1 : 0;
    z[i] = column + i < c.entries ? (expf(z[i] - lse) - hit) * scale : 0;
  }
  store<T>(z, c.z, at);
}

template <class T, int N>
const char* start_vocab(const VocabLaunch& call, void* stream) {
  constexpr int64_t kBlock = int64_t{kThreads} * N;
  if (call.lse == nullptr) {
    return launch("reduce_logits", reduce_logits<T, N>, call.rows, kThreads, call, stream);
  }
  const int64_t blocks = (call.rows * call.columns + kBlock - 1) / kBlock;
  return launch("write_gradient", write_gradient<T, N>, blocks, kThreads, call, stream);
}

} // namespace

const char* vocab(const VocabLaunch& call, void* stream) {
  const bool packs = call.columns % kVocabPack == 0 && aligned(call.z);
  if (call.type == GpuType::fp32) {
    return (packs ? start_vocab<float, kVocabPack> : start_vocab<float, 1>)(call, stream);
  }
  return (packs ? start_vocab<Bf16, kVocabPack> : start_vocab<Bf16, 1>)(call, stream);
}

} // namespace mh::cuda
