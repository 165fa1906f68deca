/// The gradient of an embedding: rows of one id are added up in their order by one block, without
/// atomics.

#include "core/cuda/kernels.cuh"
#include "core/cuda/numbers.cuh"

namespace mh::cuda {

namespace {

constexpr int kEmbeddingPack = 8;

/// Each block has some columns of one place in the order; the first place of an id adds up all of
/// its.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) add_rows(EmbeddingLaunch c) {
  constexpr int64_t kWide = int64_t{kThreads} * N;
  const int64_t tiles = (c.columns + kWide - 1) / kWide;
  const int64_t begin = blockIdx.x / tiles;
  const int64_t column = blockIdx.x % tiles * kWide + int64_t{threadIdx.x} * N;
  const int64_t id = c.ids[begin];
  if (id < 0 || column >= c.columns || (begin > 0 && c.ids[begin - 1] == id)) {
    return;
  }
  int64_t end = begin + 1;
  while (end < c.rows && c.ids[end] == id) {
    ++end;
  }
  float sums[N];
  load<float>(c.table, id * c.columns + column, sums);
MH_UNROLL(4)
  for (int64_t i = begin; i < end; ++i) {
    float x[N];
    load<T>(c.x, c.order[i] * c.columns + column, x);
    for (int k = 0; k < N; ++k) {
      sums[k] += x[k];
    }
  }
  store<float>(sums, c.table, id * c.columns + column);
}

template <class T, int N>
const char* start_embedding(const EmbeddingLaunch& call, void* stream) {
  constexpr int64_t kWide = int64_t{kThreads} * N;
  const int64_t blocks = call.rows * ((call.columns + kWide - 1) / kWide);
  return launch("add_rows", add_rows<T, N>, blocks, kThreads, call, stream);
}

} // namespace

const char* embedding(const EmbeddingLaunch& call, void* stream) {
  const bool packs =
      call.columns % kEmbeddingPack == 0 && aligned(call.x) && aligned(call.table);
  if (call.type == GpuType::fp32) {
    return (packs ? start_embedding<float, kEmbeddingPack> : start_embedding<float, 1>)(call, stream);
  }
  return (packs ? start_embedding<Bf16, kEmbeddingPack> : start_embedding<Bf16, 1>)(call, stream);
}

} // namespace mh::cuda
