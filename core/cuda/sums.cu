/// Sums of a matrix's rows, added to what is there: each block has some columns of all rows.

#include "core/cuda/kernels.cuh"
#include "core/cuda/numbers.cuh"

namespace mh::cuda {

namespace {

constexpr int kSumsPack = 8;
constexpr int kSumsWide = 4; ///< packs of a row that a block reads: 64 bytes of bf16
constexpr int kSumsDeep = kThreads / kSumsWide;

template <class T, int N>
__global__ void __launch_bounds__(kThreads) add_row_sums(RowSumsLaunch c) {
  __shared__ float parts[N][kThreads];
  const unsigned lane = threadIdx.x % kSumsWide;
  const int64_t column = (int64_t{blockIdx.x} * kSumsWide + lane) * N;
  float sums[N] = {};
  if (column < c.columns) {
MH_UNROLL(4)
    for (int64_t row = threadIdx.x / kSumsWide; row < c.rows; row += kSumsDeep) {
      float x[N];
      load<T>(c.x, row * c.columns + column, x);
      for (int i = 0; i < N; ++i) {
        sums[i] += x[i];
      }
    }
  }
  for (int i = 0; i < N; ++i) {
    parts[i][threadIdx.x] = sums[i];
  }
  for (unsigned half = kThreads / 2; half >= kSumsWide; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      for (int i = 0; i < N; ++i) {
        parts[i][threadIdx.x] += parts[i][threadIdx.x + half];
      }
    }
  }
  const bool first = column < c.split;
  float* out = first ? c.sums : c.rest;
  if (threadIdx.x < kSumsWide && column < c.columns && out != nullptr) {
    const int64_t at = first ? column : column - c.split;
    load<float>(out, at, sums);
    for (int i = 0; i < N; ++i) {
      sums[i] += parts[i][threadIdx.x];
    }
    store<float>(sums, out, at);
  }
}

template <class T, int N>
const char* start_sums(const RowSumsLaunch& call, void* stream) {
  constexpr int64_t kBlock = int64_t{kSumsWide} * N;
  const int64_t blocks = (call.columns + kBlock - 1) / kBlock;
  return launch("add_row_sums", add_row_sums<T, N>, blocks, kThreads, call, stream);
}

} // namespace

const char* row_sums(const RowSumsLaunch& call, void* stream) {
  const bool packs = call.columns % kSumsPack == 0 && call.split % kSumsPack == 0 &&
                     aligned(call.x) && aligned(call.sums) && aligned(call.rest);
  if (call.type == GpuType::fp32) {
    return (packs ? start_sums<float, kSumsPack> : start_sums<float, 1>)(call, stream);
  }
  return (packs ? start_sums<Bf16, kSumsPack> : start_sums<Bf16, 1>)(call, stream);
}

} // namespace mh::cuda
