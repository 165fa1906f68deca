/// Dropout over rows (token, sample): the random words of the CPU's kernel, one pass over memory.

#include "core/cuda/kernels.cuh"
#include "core/cuda/numbers.cuh"

namespace mh::cuda {

namespace {

constexpr int kDropoutPack = 8;

/// N features of one row from element `at` on.
template <class T, int N>
__device__ void drop_pack(const DropoutLaunch& c, int64_t at) {
  const int64_t row = at / c.features, feature = c.first_feature + at % c.features;
  const auto token = static_cast<uint32_t>(c.tokens[row / c.batch]);
  const auto sample = static_cast<uint64_t>(c.samples[row % c.batch]);
  float x[N];
  uint32_t words[N];
  load<T>(c.x, at, x);
  random_words(c.key, feature, token, sample, words);
  for (int i = 0; i < N; ++i) {
    x[i] = words[i] >= c.threshold ? x[i] * c.scale : 0.0F;
  }
  store<T>(x, c.y, at);
}

/// Each thread has N neighbours of one row.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) drop(DropoutLaunch c) {
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (at < c.rows * c.features) {
    drop_pack<T, N>(c, at);
  }
}

template <class T, int N>
const char* start_dropout(const DropoutLaunch& call, void* stream) {
  constexpr int64_t kBlock = int64_t{kThreads} * N;
  return launch(
      "drop", drop<T, N>, (call.rows * call.features + kBlock - 1) / kBlock, kThreads, call, stream
  );
}

} // namespace

const char* dropout(const DropoutLaunch& call, void* stream) {
  const bool packs = call.features % kDropoutPack == 0 && call.first_feature % 4 == 0 &&
                     aligned(call.x) && aligned(call.y);
  if (call.type == GpuType::fp32) {
    return (packs ? start_dropout<float, kDropoutPack> : start_dropout<float, 1>)(call, stream);
  }
  return (packs ? start_dropout<Bf16, kDropoutPack> : start_dropout<Bf16, 1>)(call, stream);
}

} // namespace mh::cuda
