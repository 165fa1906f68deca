/// An optimizer's pass over the elements of one parameter: gradient, weight and state in, weight,
/// state and rounded parameter out, in blocks that stay in the innermost cache.

#include "core/level/math.hpp"
#include "core/level/random.hpp"
#include "core/level/table.hpp"

#include <cmath>
#include <type_traits>

namespace mh::kernels::MH_LEVEL {

namespace {

constexpr int64_t kBlock = 64;

struct UpdateBlock {
  float weight[kBlock], gradient[kBlock], first[kBlock], second[kBlock];
};

template <class T>
inline void load(const void* from, int64_t at, int64_t count, float* to) {
  const T* x = static_cast<const T*>(from) + at;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    to[i] = wide(x[i]);
  }
}

/// Zeros where there is none.
template <class T>
inline void load_state(const void* from, int64_t at, int64_t count, float* to) {
  if (from != nullptr) {
    return load<T>(from, at, count, to);
  }
  for (int64_t i = 0; i < count; ++i) {
    to[i] = 0;
  }
}

template <class T>
inline void store(const float* from, int64_t count, void* to, int64_t at) {
  T* x = static_cast<T*>(to) + at;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    x[i] = narrow<T>(from[i]);
  }
}

/// Up with the probability that makes the mean right: 16 of the bits of each word are added to the
/// bits that are cut off. Infinities and NaNs stay what they are.
inline void store_random(
    const float* from, int64_t count, const uint32_t* words, int shift, void* to, int64_t at
) {
  Bf16* x = static_cast<Bf16*>(to) + at;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<uint32_t>(from[i]);
    const uint32_t rounded = (bits + ((words[i] >> shift) & 0xffffU)) >> 16;
    const bool finite = (bits & 0x7f800000U) != 0x7f800000U;
    x[i] = {static_cast<uint16_t>(finite ? rounded : bf16_bits(from[i]))};
  }
}

inline void adam(const UpdateCall& c, UpdateBlock& b, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float w = b.weight[i];
    const float g = b.gradient[i] * c.scale + c.l2 * w;
    const float m = b.first[i] + c.rest1 * (g - b.first[i]);
    const float v = c.beta2 * b.second[i] + c.rest2 * g * g;
    b.first[i] = m;
    b.second[i] = v;
    b.weight[i] = c.keep * w - c.rate * m / (std::sqrt(v) * c.root + c.eps);
    b.gradient[i] = 0;
  }
}

inline void sgd(const UpdateCall& c, UpdateBlock& b, int64_t count) {
  const bool ahead = c.nesterov;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float w = b.weight[i];
    const float g = b.gradient[i] * c.scale + c.l2 * w;
    const float m = c.beta1 * b.first[i] + g;
    b.first[i] = m;
    b.weight[i] = c.keep * w - c.rate * (ahead ? g + c.beta1 * m : m);
    b.gradient[i] = 0;
  }
}

inline void average(const UpdateCall& c, UpdateBlock& b, int64_t count) {
  const bool ahead = c.nesterov;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float g = b.gradient[i] * c.scale;
    const float m = b.first[i] + c.rest1 * (g - b.first[i]);
    b.first[i] = m;
    b.gradient[i] = ahead ? g + c.beta1 * (m - g) : m;
  }
}

/// Weights of W, state of S.
template <class W, class S>
void update(const UpdateCall& c, int64_t begin, int64_t end) {
  UpdateBlock b;
  FeatureWords room;
  const uint32_t* words = nullptr;
  const auto put = [&](const float* from, int64_t count, int shift, auto type, void* to, int64_t at
                   ) {
    using T = decltype(type);
    if constexpr (std::is_same_v<T, Bf16>) {
      if (c.stochastic) {
        return store_random(from, count, words, shift, to, at);
      }
    }
    store<T>(from, count, to, at);
  };
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t count = end - at < kBlock ? end - at : kBlock;
    load<W>(c.weight, at, count, b.weight);
    load<float>(c.gradient, at, count, b.gradient);
    load_state<S>(c.first, at, count, b.first);
    load_state<S>(c.second, at, count, b.second);
    (c.kind == UpdateKind::adam ? adam : c.kind == UpdateKind::sgd ? sgd : average)(c, b, count);
    if (c.stochastic) {
      words = feature_words(c.key, c.origin + at, 0, c.step, room);
    }
    if (c.first != nullptr) {
      put(b.first, count, 0, S{}, c.first, at);
    }
    if (c.second != nullptr) {
      put(b.second, count, 16, S{}, c.second, at);
    }
    store<float>(b.gradient, count, c.gradient, at);
    if (c.kind == UpdateKind::average) {
      continue;
    }
    if (std::is_same_v<W, Bf16> && c.stochastic) {
      words = feature_words(c.key, c.origin + at, 1, c.step, room);
    }
    put(b.weight, count, 0, W{}, c.weight, at);
    if (c.parameter != nullptr) {
      store<Bf16>(b.weight, count, c.parameter, at);
    }
  }
}

} // namespace

const UpdateKernels& update_kernels() {
  static const UpdateKernels kKernels = {
      .fp32 = update<float, float>,
      .fp32_bf16 = update<float, Bf16>,
      .bf16_fp32 = update<Bf16, float>,
      .bf16 = update<Bf16, Bf16>};
  return kKernels;
}

} // namespace mh::kernels::MH_LEVEL
