/// Layer norms of a residual stream, and their gradients: 32 threads read a row forward, a block a
/// chunk of rows backward. All sums are made in one order, without atomics.

#include "core/cuda/kernels.cuh"
#include "core/cuda/numbers.cuh"

#include <math.h>

namespace mh::cuda {

namespace {

constexpr int kNormPack = 8;
constexpr int kGradientPack = 4; ///< fewer, since more lives in registers
constexpr int kNormRows = kThreads / kLanes; ///< rows that a block takes at a time

/// N elements of the residual stream; where something is added to it they are written, too.
template <class T, int N>
__device__ void load_sum(const NormLaunch& c, int64_t at, float (&x)[N]) {
  load<T>(c.x, at, x);
  if (c.added != nullptr) {
    float added[N];
    load<T>(c.added, at, added);
    for (int i = 0; i < N; ++i) {
      T sum;
      narrow(x[i] + added[i], sum);
      x[i] = wide(sum);
    }
    store<T>(x, c.sum, at);
  }
}

/// The sum of squares, minus those of the mean.
template <class T, int N>
__device__ float squares(const NormLaunch& c, int64_t begin, int64_t end, float mean) {
  const void* x = c.added == nullptr ? c.x : c.sum;
  float squares = 0;
  for (int64_t at = begin; at < end; at += kLanes * N) {
    float own[N];
    load<T>(x, at, own);
    for (int i = 0; i < N; ++i) {
      squares += (own[i] - mean) * (own[i] - mean);
    }
  }
  return squares;
}

template <class T, int N>
__device__ void
write_normal(const NormLaunch& c, int64_t row, int64_t first, float mean, float rstd) {
  const void* x = c.added == nullptr ? c.x : c.sum;
  for (int64_t column = first; column < c.columns; column += kLanes * N) {
    float y[N], weight[N], bias[N] = {};
    load<T>(x, row * c.columns + column, y);
    load<T>(c.weight, column, weight);
    if (c.bias != nullptr) {
      load<T>(c.bias, column, bias);
    }
    for (int i = 0; i < N; ++i) {
      y[i] = (y[i] - mean) * rstd * weight[i] + bias[i];
    }
    store<T>(y, c.y, row * c.columns + column);
  }
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) normalise(NormLaunch c) {
  const int64_t row = int64_t{blockIdx.x} * kNormRows + threadIdx.x / kLanes;
  const int64_t first = int64_t{threadIdx.x % kLanes} * N;
  const int64_t begin = row * c.columns + first;
  const int64_t end = row < c.rows ? (row + 1) * c.columns : begin;
  const auto columns = static_cast<float>(c.columns);
  float sum = 0, mean = 0;
  for (int64_t at = begin; at < end; at += kLanes * N) {
    float x[N];
    load_sum<T>(c, at, x);
    for (int i = 0; i < N; ++i) {
      sum += c.mean == nullptr ? x[i] * x[i] : x[i];
    }
  }
  sum = sum_of_lanes(sum);
  if (c.mean != nullptr) {
    mean = sum / columns;
    sum = sum_of_lanes(squares<T, N>(c, begin, end, mean));
  }
  const float rstd = 1 / sqrtf(sum / columns + c.eps);
  if (begin < end) {
    write_normal<T, N>(c, row, first, mean, rstd);
  }
  if (row < c.rows && first == 0) {
    c.rstd[row] = rstd;
    if (c.mean != nullptr) {
      c.mean[row] = mean;
    }
  }
}

/// The terms of a row's gradient that depend on the whole row: means of dy weight and of dy weight
/// normal.
struct RowMeans {
  float scaled, along;
};

struct NormalRow {
  float mean, rstd;
};

__device__ NormalRow normal_row(const NormGradientLaunch& c, int64_t row) {
  return {c.mean == nullptr ? 0 : c.mean[row], c.rstd[row]};
}

/// The sums of one thread's columns of a row.
template <class T, int N>
__device__ RowMeans row_sums(const NormGradientLaunch& c, int64_t row, int64_t first) {
  const NormalRow n = normal_row(c, row);
  RowMeans sums{0, 0};
MH_UNROLL(2)
  for (int64_t column = first; column < c.columns; column += kLanes * N) {
    float x[N], dy[N], weight[N];
    load<T>(c.x, row * c.columns + column, x);
    load<T>(c.dy, row * c.columns + column, dy);
    load<T>(c.weight, column, weight);
    for (int i = 0; i < N; ++i) {
      const float scaled = dy[i] * weight[i];
      sums.scaled += scaled;
      sums.along += scaled * ((x[i] - n.mean) * n.rstd);
    }
  }
  return sums;
}

/// N columns of the rows from `begin` to `end`.
template <class T, int N>
__device__ void differentiate_columns(
    const NormGradientLaunch& c, int64_t begin, int64_t end, int64_t column, const RowMeans* means
) {
  float weight[N], dweight[N] = {}, dbias[N] = {};
  load<T>(c.weight, column, weight);
MH_UNROLL(1)
  for (int64_t row = begin; row < end; ++row) {
    const NormalRow n = normal_row(c, row);
    const int64_t at = row * c.columns + column;
    const float scaled = c.mean == nullptr ? 0 : means[row - begin].scaled;
    const float along = means[row - begin].along;
    float x[N], dy[N];
    load<T>(c.x, at, x);
    load<T>(c.dy, at, dy);
    for (int i = 0; i < N; ++i) {
      const float normal = (x[i] - n.mean) * n.rstd;
      dweight[i] += dy[i] * normal;
      dbias[i] += dy[i];
      x[i] = (dy[i] * weight[i] - scaled - normal * along) * n.rstd;
    }
    if (c.dsum != nullptr) {
      load<T>(c.dsum, at, dy);
      for (int i = 0; i < N; ++i) {
        x[i] += dy[i];
      }
    }
    store<T>(x, c.dx, at);
  }
  if (c.sums == nullptr) {
    return;
  }
  const int64_t at = begin / kNormChunk * c.columns * (c.mean == nullptr ? 1 : 2) + column;
  store<float>(dweight, c.sums, at);
  if (c.mean != nullptr) {
    store<float>(dbias, c.sums, at + c.columns);
  }
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) differentiate_norm(NormGradientLaunch c) {
  __shared__ RowMeans parts[kNormChunk][kLanes + 1]; // a column more: banks of memory differ
  __shared__ RowMeans means[kNormChunk];
  const int64_t begin = int64_t{blockIdx.x} * kNormChunk;
  const int64_t end = begin + kNormChunk < c.rows ? begin + kNormChunk : c.rows;
  const unsigned lane = threadIdx.x % kLanes;
  for (int64_t row = begin + threadIdx.x / kLanes; row < end; row += kNormRows) {
    parts[row - begin][lane] = row_sums<T, N>(c, row, int64_t{lane} * N);
  }
  __syncthreads();
  if (begin + threadIdx.x < end) {
    RowMeans sums{0, 0};
    for (int i = 0; i < kLanes; ++i) {
      sums.scaled += parts[threadIdx.x][i].scaled;
      sums.along += parts[threadIdx.x][i].along;
    }
    const auto columns = static_cast<float>(c.columns);
    means[threadIdx.x] = {sums.scaled / columns, sums.along / columns};
  }
  __syncthreads();
  for (int64_t column = int64_t{threadIdx.x} * N; column < c.columns; column += kThreads * N) {
    differentiate_columns<T, N>(c, begin, end, column, means);
  }
}

template <class T, int N>
const char* start_norm(const NormLaunch& call, void* stream) {
  const int64_t blocks = (call.rows + kNormRows - 1) / kNormRows;
  return launch("normalise", normalise<T, N>, blocks, kThreads, call, stream);
}

template <class T, int N>
const char* start_norm_gradient(const NormGradientLaunch& call, void* stream) {
  const int64_t blocks = (call.rows + kNormChunk - 1) / kNormChunk;
  return launch("differentiate_norm", differentiate_norm<T, N>, blocks, kThreads, call, stream);
}

} // namespace

const char* norm(const NormLaunch& call, void* stream) {
  const bool packs = call.columns % kNormPack == 0 && aligned(call.x) && aligned(call.added) &&
                     aligned(call.weight) && aligned(call.bias) && aligned(call.sum) &&
                     aligned(call.y);
  if (call.type == GpuType::fp32) {
    return (packs ? start_norm<float, kNormPack> : start_norm<float, 1>)(call, stream);
  }
  return (packs ? start_norm<Bf16, kNormPack> : start_norm<Bf16, 1>)(call, stream);
}

const char* norm_gradient(const NormGradientLaunch& call, void* stream) {
  constexpr int kPack = kGradientPack;
  const bool packs = call.columns % kPack == 0 && aligned(call.x) && aligned(call.dy) &&
                     aligned(call.weight) && aligned(call.dsum) && aligned(call.dx) &&
                     aligned(call.sums);
  if (call.type == GpuType::fp32) {
    return (packs ? start_norm_gradient<float, kPack> : start_norm_gradient<float, 1>)(call, stream);
  }
  return (packs ? start_norm_gradient<Bf16, kPack> : start_norm_gradient<Bf16, 1>)(call, stream);
}

} // namespace mh::cuda
