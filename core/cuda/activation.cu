/// Activations and their gradients in one pass over memory each, gated or not.

#include "core/cuda/kernels.cuh"
#include "core/cuda/numbers.cuh"

#include <math.h>

namespace mh::cuda {

namespace {

constexpr int kActivationPack = 8;

/// The share of the input that an activation lets through, act(x) = x share(x), and act'(x).
struct Share {
  float share, slope;
};

__device__ Share share_of(Activate kind, float x) {
  if (kind == Activate::silu) {
    const float share = 1 / (1 + expf(-x));
    return {share, share * (1 + x * (1 - share))};
  }
  if (kind == Activate::gelu_tanh) {
    // (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3)
    constexpr float kTwice = 1.5957691216057308F;
    const float square = x * x;
    const float share = 1 / (1 + expf(-kTwice * x * (1 + 0.044715F * square)));
    return {share, share * (1 + x * (1 - share) * kTwice * (1 + 0.134145F * square))};
  }
  constexpr float kRootHalf = 0.70710678118654752F;
  constexpr float kDensity = 0.39894228040143268F; // 1 / sqrt(2 pi)
  const float share = 0.5F * (1 + erff(x * kRootHalf));
  return {share, share + x * kDensity * expf(-0.5F * x * x)};
}

/// N neighbours of one row, from element `at` of y on; `in_x` is the place of the first's gate in
/// x.
template <class T, int N>
__device__ void forward_pack(const ActivationLaunch& c, int64_t at, int64_t in_x) {
  float gate[N], up[N];
  load<T>(c.x, in_x, gate);
  if (c.gated) {
    load<T>(c.x, in_x + c.width, up);
  }
  for (int i = 0; i < N; ++i) {
    gate[i] = gate[i] * share_of(c.kind, gate[i]).share * (c.gated ? up[i] : 1);
  }
  store<T>(gate, c.y, at);
}

template <class T, int N>
__device__ void backward_pack(const ActivationLaunch& c, int64_t at, int64_t in_x) {
  float gate[N], up[N], dy[N];
  load<T>(c.dy, at, dy);
  load<T>(c.x, in_x, gate);
  if (c.gated) {
    load<T>(c.x, in_x + c.width, up);
  }
  for (int i = 0; i < N; ++i) {
    const Share a = share_of(c.kind, gate[i]);
    const float dup = dy[i] * gate[i] * a.share;
    gate[i] = dy[i] * (c.gated ? up[i] : 1) * a.slope;
    up[i] = dup;
  }
  store<T>(gate, c.dx, in_x);
  if (c.gated) {
    store<T>(up, c.dx, in_x + c.width);
  }
}

/// Each thread has N neighbours of one row.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) activate(ActivationLaunch c) {
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (at >= c.rows * c.width) {
    return;
  }
  const int64_t in_x = c.gated ? at + at / c.width * c.width : at;
  if (c.dy == nullptr) {
    forward_pack<T, N>(c, at, in_x);
  } else {
    backward_pack<T, N>(c, at, in_x);
  }
}

template <class T, int N>
const char* start_activation(const ActivationLaunch& call, void* stream) {
  constexpr int64_t kBlock = int64_t{kThreads} * N;
  const int64_t blocks = (call.rows * call.width + kBlock - 1) / kBlock;
  return launch("activate", activate<T, N>, blocks, kThreads, call, stream);
}

} // namespace

const char* activation(const ActivationLaunch& call, void* stream) {
  const bool packs = call.width % kActivationPack == 0 && aligned(call.x) && aligned(call.dy) &&
                     aligned(call.y) && aligned(call.dx);
  if (call.type == GpuType::fp32) {
    return (packs ? start_activation<float, kActivationPack> : start_activation<float, 1>)(call, stream);
  }
  return (packs ? start_activation<Bf16, kActivationPack> : start_activation<Bf16, 1>)(call, stream);
}

} // namespace mh::cuda
