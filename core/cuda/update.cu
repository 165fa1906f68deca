/// An optimizer's pass over all parameters in one launch: gradient, weight and state in; weight,
/// state, rounded parameter and a gradient of zero out. A block of threads updates one chunk of one
/// item.
///
/// Products and sums are rounded one by one (compile without contraction): the results are those of
/// core/level/update.cpp at the level `base`.

#include "core/cuda/kernels.cuh"
#include "core/cuda/numbers.cuh"

#include <math.h>

namespace mh::cuda {

namespace {

constexpr int kUpdatePack = 4;

__device__ double read(const GpuNumber& number) {
  return number.base == nullptr ? number.value : *number.base * number.value;
}

/// By squaring: a library's `pow` takes more registers than all the rest.
__device__ double power(double base, uint64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent /= 2, base *= base) {
    result = exponent % 2 == 1 ? result * base : result;
  }
  return result;
}

/// The terms that are the same for all elements of an item.
struct Terms {
  float scale, keep, l2; // g = scale g + l2 w, w = keep w - ...
  float rate, beta1, rest1, beta2, rest2, root, eps;
  uint64_t step;
};

__device__ Terms terms_of(const UpdateLaunch& c, const GpuItem& item) {
  const double rate = read(item.rate), decay = read(item.decay);
  const auto step = static_cast<uint64_t>(read(c.step));
  const bool adam = c.kind == UpdateKind::adam, known = c.step.base == nullptr;
  const double rest1 = !adam ? 1 : known ? c.rest1 : 1 - power(c.beta1, step);
  const double rest2 = !adam ? 1 : known ? c.rest2 : 1 - power(c.beta2, step);
  return {
      static_cast<float>(read(c.scale)),
      static_cast<float>(c.decoupled ? 1 - rate * decay : 1),
      static_cast<float>(c.decoupled ? 0 : decay),
      static_cast<float>(rate / rest1),
      static_cast<float>(c.beta1),
      static_cast<float>(1 - c.beta1),
      static_cast<float>(c.beta2),
      static_cast<float>(1 - c.beta2),
      static_cast<float>(1 / sqrt(rest2)),
      static_cast<float>(c.eps),
      step};
}

/// The last item that does not begin behind this chunk.
__device__ int32_t item_of(const UpdateLaunch& c, int64_t chunk) {
  int32_t begin = 0, end = c.item_count;
  while (end - begin > 1) {
    const int32_t middle = begin + (end - begin) / 2;
    (c.items[middle].first_chunk <= chunk ? begin : end) = middle;
  }
  return begin;
}

/// The place of an item's element in its global tensor.
__device__ int64_t global_index(const GpuItem& item, const Place* places, int64_t local) {
  if (item.places == 0) {
    return local;
  }
  int64_t index = 0, stride = 1;
  for (int32_t d = item.places - 1; d > 0; --d) {
    const Place place = places[item.place + d];
    index += (local % place.size + place.offset) * stride;
    local /= place.size;
    stride *= place.shape;
  }
  return index + (local + places[item.place].offset) * stride;
}

/// Whether elements that share a random counter in the global tensor are a pack here: four of them,
/// of which the first is at a multiple of four in both.
__device__ bool packs_share_counters(const GpuItem& item, const Place* places) {
  if (item.places == 0) {
    return true;
  }
  const Place inner = places[item.place + item.places - 1];
  return inner.offset % kUpdatePack == 0 &&
         (item.places == 1 || (inner.size % kUpdatePack == 0 && inner.shape % kUpdatePack == 0));
}

template <int N>
struct Elements {
  float weight[N], gradient[N], first[N], second[N];
};

template <int N>
__device__ void compute(const UpdateLaunch& c, const Terms& t, Elements<N>& e) {
  for (int i = 0; i < N; ++i) {
    const float w = e.weight[i];
    const bool average = c.kind == UpdateKind::average;
    const float g = average ? e.gradient[i] * t.scale : e.gradient[i] * t.scale + t.l2 * w;
    if (c.kind == UpdateKind::sgd) {
      const float m = t.beta1 * e.first[i] + g;
      e.first[i] = m;
      e.weight[i] = t.keep * w - t.rate * (c.nesterov ? g + t.beta1 * m : m);
      e.gradient[i] = 0;
      continue;
    }
    const float m = e.first[i] + t.rest1 * (g - e.first[i]);
    e.first[i] = m;
    if (average) {
      e.gradient[i] = c.nesterov ? g + t.beta1 * (m - g) : m;
      continue;
    }
    const float v = t.beta2 * e.second[i] + t.rest2 * g * g;
    e.second[i] = v;
    e.weight[i] = t.keep * w - t.rate * m / (sqrtf(v) * t.root + t.eps);
    e.gradient[i] = 0;
  }
}

/// N elements with weights of W and state of S.
template <class W, class S, int N>
__device__ void
update_pack(const UpdateLaunch& c, const GpuItem& item, const Terms& t, int64_t at) {
  Elements<N> e = {};
  load<W>(item.weight, at, e.weight);
  load<float>(item.gradient, at, e.gradient);
  if (item.first != nullptr) {
    load<S>(item.first, at, e.first);
  }
  if (item.second != nullptr) {
    load<S>(item.second, at, e.second);
  }
  compute(c, t, e);
  uint32_t words[N];
  const auto put = [&](const float(&from)[N], int shift, auto type, void* to) {
    if constexpr (sizeof(type) == sizeof(Bf16)) {
      if (c.stochastic) {
        return store_randomly(from, words, shift, to, at);
      }
    }
    store<decltype(type)>(from, to, at);
  };
  if (sizeof(S) == sizeof(Bf16) && c.stochastic) {
    random_words(item.key, global_index(item, c.places, at), 0, t.step, words);
  }
  if (item.first != nullptr) {
    put(e.first, 0, S{}, item.first);
  }
  if (item.second != nullptr) {
    put(e.second, 16, S{}, item.second);
  }
  store<float>(e.gradient, item.gradient, at);
  if (c.kind == UpdateKind::average) {
    return;
  }
  if (sizeof(W) == sizeof(Bf16) && c.stochastic) {
    random_words(item.key, global_index(item, c.places, at), 1, t.step, words);
  }
  put(e.weight, 0, W{}, item.weight);
  if (item.parameter != nullptr) {
    store<Bf16>(e.weight, item.parameter, at);
  }
}

template <class W, class S>
__device__ void update_chunk(const UpdateLaunch& c, const GpuItem& item, const Terms& t) {
  const int64_t begin = (blockIdx.x - item.first_chunk) * kUpdateChunk;
  const int64_t end = item.count - begin < kUpdateChunk ? item.count : begin + kUpdateChunk;
  const bool packs = aligned(item.weight) && aligned(item.gradient) && aligned(item.first) &&
                     aligned(item.second) && aligned(item.parameter) &&
                     (!c.stochastic || packs_share_counters(item, c.places));
  const int64_t whole = packs ? begin + (end - begin) / kUpdatePack * kUpdatePack : begin;
  for (int64_t at = begin + int64_t{threadIdx.x} * kUpdatePack; at < whole;
       at += kThreads * kUpdatePack) {
    update_pack<W, S, kUpdatePack>(c, item, t, at);
  }
  for (int64_t at = whole + threadIdx.x; at < end; at += kThreads) {
    update_pack<W, S, 1>(c, item, t, at);
  }
}

__global__ void __launch_bounds__(kThreads) update_items(UpdateLaunch c) {
  __shared__ GpuItem item;
  __shared__ Terms terms;
  if (threadIdx.x == 0) {
    item = c.items[item_of(c, blockIdx.x)];
    terms = terms_of(c, item);
  }
  __syncthreads();
  const bool state16 = item.state_type == GpuType::bf16;
  if (item.weight_type == GpuType::fp32) {
    state16 ? update_chunk<float, Bf16>(c, item, terms)
            : update_chunk<float, float>(c, item, terms);
  } else {
    state16 ? update_chunk<Bf16, Bf16>(c, item, terms) : update_chunk<Bf16, float>(c, item, terms);
  }
}

} // namespace

const char* update(const UpdateLaunch& call, void* stream) {
  return launch("update_items", update_items, call.chunks, kThreads, call, stream);
}

} // namespace mh::cuda
