/// Gradients of a norm's weight and bias: sums over the rows of each chunk, in one order, without
/// atomics.

#include "core/cuda/kernels.cuh"
#include "core/cuda/numbers.cuh"

namespace mh::cuda {

namespace {

constexpr int kNormPack = 4;

/// Each thread adds up N columns of one chunk.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) add_up_norm(NormGradientCall c) {
  const int64_t packs = c.columns / N;
  const int64_t place = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t chunk = place / packs, column = place % packs * N;
  const int64_t begin = chunk * c.chunk;
  const int64_t end = begin + c.chunk < c.rows ? begin + c.chunk : c.rows;
  if (begin >= c.rows) {
    return;
  }
  float weight[N] = {}, bias[N] = {};
  for (int64_t row = begin; row < end; ++row) {
    float x[N], dy[N];
    load<T>(c.x, row * c.columns + column, x);
    load<T>(c.dy, row * c.columns + column, dy);
    const float mean = c.mean == nullptr ? 0 : c.mean[row], rstd = c.rstd[row];
    for (int i = 0; i < N; ++i) {
      weight[i] += dy[i] * ((x[i] - mean) * rstd);
      bias[i] += dy[i];
    }
  }
  store<float>(weight, c.dweight, chunk * c.columns + column);
  if (c.dbias != nullptr) {
    store<float>(bias, c.dbias, chunk * c.columns + column);
  }
}

template <class T, int N>
const char* start_norm(const NormGradientCall& call, void* stream) {
  const int64_t chunks = (call.rows + call.chunk - 1) / call.chunk;
  const int64_t blocks = (chunks * (call.columns / N) + kThreads - 1) / kThreads;
  return launch("add_up_norm", add_up_norm<T, N>, blocks, kThreads, call, stream);
}

} // namespace

const char* norm_gradient(const NormGradientCall& call, void* stream) {
  const bool packs = call.columns % kNormPack == 0 && aligned(call.x) && aligned(call.dy) &&
                     aligned(call.dweight) && aligned(call.dbias);
  if (call.type == Type::fp32) {
    return (packs ? start_norm<float, kNormPack> : start_norm<float, 1>)(call, stream);
  }
  return (packs ? start_norm<Bf16, kNormPack> : start_norm<Bf16, 1>)(call, stream);
}

} // namespace mh::cuda
