/// Rotary embedding of heads that lie in up to three tensors, into one: q and k forward, and
/// backward the gradients of q, k and v, of which v's are copied.

#include "core/cuda/kernels.cuh"
#include "core/cuda/numbers.cuh"

namespace mh::cuda {

namespace {

constexpr int kRotaryPack = 8;

/// The place that one thread reads: two packs of one head.
struct HeadPlace {
  const void* x;
  int64_t at; ///< index of the head's first element in x
  bool rotated;
};

__device__ HeadPlace head_place(const RotaryLaunch& c, int64_t row, int64_t head) {
  int part = 0;
  for (; head >= c.parts[part].heads; ++part) {
    head -= c.parts[part].heads;
  }
  const RotaryPart& p = c.parts[part];
  return {
      p.x, row / c.batch * p.seq + row % c.batch * p.sample + head * p.head, part < c.rotated};
}

/// N pairs of elements, `half` apart.
template <class T, int N>
__device__ void rotate_pairs(const RotaryLaunch& c, const HeadPlace& from, int64_t to, int64_t row, int64_t first) {
  const int64_t turn =
      (row / c.batch * c.table_batch + (c.table_batch == 1 ? 0 : row % c.batch)) * c.half + first;
  float a[N], b[N], cosine[N], sine[N];
  load<float>(c.cosine, turn, cosine);
  load<float>(c.sine, turn, sine);
  load<T>(from.x, from.at + first, a);
  load<T>(from.x, from.at + first + c.half, b);
  for (int i = 0; i < N; ++i) {
    const float x = a[i], s = c.inverse ? -sine[i] : sine[i];
    a[i] = x * cosine[i] - b[i] * s;
    b[i] = b[i] * cosine[i] + x * s;
  }
  store<T>(a, c.y, to + first);
  store<T>(b, c.y, to + first + c.half);
}

/// Up to 2 N elements as they are.
template <class T, int N>
__device__ void copy_packs(const RotaryLaunch& c, const HeadPlace& from, int64_t to, int64_t first) {
  for (int64_t i = first; i < first + 2 * N && i < c.dim; i += N) {
    write_pack(read_pack<T, N>(from.x, from.at + i), c.y, to + i);
  }
}

/// Each thread has two packs of a head.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) rotate(RotaryLaunch c) {
  const int64_t units = (c.dim + 2 * N - 1) / (2 * N);
  const int64_t place = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t unit = place % units, row = place / units / c.heads;
  if (row >= c.rows) {
    return;
  }
  const HeadPlace from = head_place(c, row, place / units % c.heads);
  const int64_t to = place / units * c.dim;
  if (from.rotated && unit * N < c.half) {
    rotate_pairs<T, N>(c, from, to, row, unit * N);
  } else {
    copy_packs<T, N>(c, from, to, unit * 2 * N);
  }
}

template <class T, int N>
const char* start_rotary(const RotaryLaunch& call, void* stream) {
  const int64_t threads = call.rows * call.heads * ((call.dim + 2 * N - 1) / (2 * N));
  const int64_t blocks = (threads + kThreads - 1) / kThreads;
  return launch("rotate", rotate<T, N>, blocks, kThreads, call, stream);
}

bool packs(const RotaryLaunch& call) {
  bool all = call.half % kRotaryPack == 0 && call.dim % (2 * kRotaryPack) == 0 &&
             aligned(call.y) && aligned(call.cosine) && aligned(call.sine);
  for (const RotaryPart& p : call.parts) {
    all = all && aligned(p.x) && p.seq % kRotaryPack == 0 && p.sample % kRotaryPack == 0 &&
          p.head % kRotaryPack == 0;
  }
  return all;
}

} // namespace

const char* rotary(const RotaryLaunch& call, void* stream) {
  const bool whole = packs(call);
  if (call.type == GpuType::fp32) {
    return (whole ? start_rotary<float, kRotaryPack> : start_rotary<float, 1>)(call, stream);
  }
  return (whole ? start_rotary<Bf16, kRotaryPack> : start_rotary<Bf16, 1>)(call, stream);
}

} // namespace mh::cuda
