/// Norms, rotary embedding, gated activations, the vocabulary's softmax and sums over rows.
///
/// A loop either adds up or narrows: g++ 12 adds up wrong values where one loop does both.

#include "core/level/math.hpp"
#include "core/level/random.hpp"
#include "core/level/table.hpp"

#include <cmath>

namespace mh::kernels::MH_LEVEL {

namespace {

template <class T>
void norm_forward_row(const NormCall& c, int64_t r) {
  const int64_t n = c.columns;
  const T* x = static_cast<const T*>(c.x) + r * n;
  const T* weight = static_cast<const T*>(c.weight);
  const T* bias = static_cast<const T*>(c.bias);
  T* y = static_cast<T*>(c.y) + r * n;
  float mean = 0;
  if (c.centred) {
#pragma omp simd reduction(+ : mean)
    for (int64_t i = 0; i < n; ++i) {
      mean += wide(x[i]);
    }
    mean /= static_cast<float>(n);
    c.mean[r] = mean;
  }
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < n; ++i) {
    const float d = wide(x[i]) - mean;
    squares += d * d;
  }
  const float rstd = 1 / std::sqrt(squares / static_cast<float>(n) + c.eps);
  c.rstd[r] = rstd;
  if (bias == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      y[i] = narrow<T>((wide(x[i]) - mean) * rstd * wide(weight[i]));
    }
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      y[i] = narrow<T>((wide(x[i]) - mean) * rstd * wide(weight[i]) + wide(bias[i]));
    }
  }
}

template <class T>
void norm_forward(const NormCall& c, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    norm_forward_row<T>(c, r);
  }
}

template <class T>
void norm_backward_row(const NormCall& c, int64_t r, float* dweight, float* dbias) {
  const int64_t n = c.columns;
  const T* x = static_cast<const T*>(c.x) + r * n;
  const T* dy = static_cast<const T*>(c.dy) + r * n;
  const T* weight = static_cast<const T*>(c.weight);
  T* dx = static_cast<T*>(c.dx) + r * n;
  const float mean = c.centred ? c.mean[r] : 0;
  const float rstd = c.rstd[r];
  float along = 0;
  float sum = 0;
#pragma omp simd reduction(+ : along, sum)
  for (int64_t i = 0; i < n; ++i) {
    const float scaled = wide(dy[i]) * wide(weight[i]);
    along += scaled * (wide(x[i]) - mean);
    sum += scaled;
  }
  along *= rstd * rstd / static_cast<float>(n);
  sum = c.centred ? sum / static_cast<float>(n) : 0;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float scaled = wide(dy[i]) * wide(weight[i]);
    dx[i] = narrow<T>(rstd * (scaled - sum - (wide(x[i]) - mean) * along));
  }
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    dweight[i] += wide(dy[i]) * (wide(x[i]) - mean) * rstd;
  }
  if (dbias != nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      dbias[i] += wide(dy[i]);
    }
  }
}

/// Rows from begin to end, which are one chunk.
template <class T>
void norm_backward(const NormCall& c, int64_t begin, int64_t end) {
  float* dweight = c.dweight + begin / kNormChunk * c.columns;
  float* dbias = c.dbias == nullptr ? nullptr : c.dbias + begin / kNormChunk * c.columns;
  for (int64_t i = 0; i < c.columns; ++i) {
    dweight[i] = 0;
  }
  for (int64_t i = 0; dbias != nullptr && i < c.columns; ++i) {
    dbias[i] = 0;
  }
  for (int64_t r = begin; r < end; ++r) {
    norm_backward_row<T>(c, r, dweight, dbias);
  }
}

/// Rows are (token, sample).
template <class T>
void rotary(const RotaryCall& c, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const int64_t s = r / c.batch;
    const int64_t b = r % c.batch;
    const int64_t at = (s * c.table_batch + (c.table_batch == 1 ? 0 : b)) * c.half;
    const float* cosine = c.cosine + at;
    const float* sine = c.sine + at;
    const float sign = c.inverse ? -1.0F : 1.0F;
    for (int64_t h = 0; h < c.heads; ++h) {
      const T* x = static_cast<const T*>(c.x) + s * c.x_seq + b * c.x_batch + h * c.x_head;
      T* y = static_cast<T*>(c.y) + r * c.y_row + h * c.dim;
#pragma omp simd
      for (int64_t i = 0; i < c.half; ++i) {
        const float first = wide(x[i]);
        const float second = wide(x[c.half + i]);
        const float turn = sine[i] * sign;
        y[i] = narrow<T>(first * cosine[i] - second * turn);
        y[c.half + i] = narrow<T>(second * cosine[i] + first * turn);
      }
      for (int64_t i = 2 * c.half; i < c.dim; ++i) {
        y[i] = x[i];
      }
    }
  }
}

template <class T>
void dropout(const DropoutCall& c, int64_t begin, int64_t end) {
  FeatureWords room;
  const uint32_t threshold = c.threshold; // not read under a condition: that is a branch
  const float scale = c.scale;
  for (int64_t r = begin; r < end; ++r) {
    const auto token = static_cast<uint32_t>(c.tokens[r / c.batch]);
    const auto sample = static_cast<uint64_t>(c.samples[r % c.batch]);
    for (int64_t first = 0; first < c.features; first += kDrawn) {
      const uint32_t* words = feature_words(c.key, c.first_feature + first, token, sample, room);
      const T* x = static_cast<const T*>(c.x) + r * c.features + first;
      T* y = static_cast<T*>(c.y) + r * c.features + first;
      const int64_t count = c.features - first < kDrawn ? c.features - first : kDrawn;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        y[i] = narrow<T>(words[i] >= threshold ? wide(x[i]) * scale : 0.0F);
      }
    }
  }
}

/// erf to 1.5e-7.  Source:  Abramowitz and Stegun, 7.1.26
inline float erf_fast(float x) {
  const float size = x < 0 ? -x : x;
  const float t = 1 / (1 + 0.3275911F * size);
  float p = 1.061405429F;
  p = p * t - 1.453152027F;
  p = p * t + 1.421413741F;
  p = p * t - 0.284496736F;
  p = p * t + 0.254829592F;
  const float y = 1 - p * t * exp_fast(-size * size);
  return x < 0 ? -y : y;
}

/// The share of the input that an activation lets through, act(x) = x share(x), and act'(x).
struct Gate {
  float share, slope;
};

template <Activate A>
inline Gate activation(float x) {
  if constexpr (A == Activate::silu) {
    const float share = 1 / (1 + exp_fast(-x));
    return {share, share * (1 + x * (1 - share))};
  } else if constexpr (A == Activate::gelu_tanh) {
    // (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3)
    constexpr float kTwice = 1.5957691216057308F;
    const float square = x * x;
    const float share = 1 / (1 + exp_fast(-kTwice * x * (1 + 0.044715F * square)));
    return {share, share * (1 + x * (1 - share) * kTwice * (1 + 0.134145F * square))};
  } else {
    constexpr float kRootHalf = 0.70710678118654752F;
    constexpr float kDensity = 0.39894228040143268F; // 1 / sqrt(2 pi)
    const float share = 0.5F * (1 + erf_fast(x * kRootHalf));
    return {share, share + x * kDensity * exp_fast(-0.5F * x * x)};
  }
}

template <class T, Activate A>
void activation_forward_rows(const ActivationCall& c, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T* x = static_cast<const T*>(c.x) + r * c.width * (c.gated ? 2 : 1);
    T* y = static_cast<T*>(c.y) + r * c.width;
    if (c.gated) {
      const T* up = x + c.width;
#pragma omp simd
      for (int64_t i = 0; i < c.width; ++i) {
        const float g = wide(x[i]);
        y[i] = narrow<T>(g * activation<A>(g).share * wide(up[i]));
      }
    } else {
#pragma omp simd
      for (int64_t i = 0; i < c.width; ++i) {
        const float g = wide(x[i]);
        y[i] = narrow<T>(g * activation<A>(g).share);
      }
    }
  }
}

template <class T, Activate A>
void activation_backward_rows(const ActivationCall& c, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T* x = static_cast<const T*>(c.x) + r * c.width * (c.gated ? 2 : 1);
    const T* dy = static_cast<const T*>(c.dy) + r * c.width;
    T* dx = static_cast<T*>(c.dx) + r * c.width * (c.gated ? 2 : 1);
    if (c.gated) {
      const T* up = x + c.width;
      T* dup = dx + c.width;
#pragma omp simd
      for (int64_t i = 0; i < c.width; ++i) {
        const float g = wide(x[i]);
        const float d = wide(dy[i]);
        const Gate a = activation<A>(g);
        dx[i] = narrow<T>(d * wide(up[i]) * a.slope);
        dup[i] = narrow<T>(d * g * a.share);
      }
    } else {
#pragma omp simd
      for (int64_t i = 0; i < c.width; ++i) {
        dx[i] = narrow<T>(wide(dy[i]) * activation<A>(wide(x[i])).slope);
      }
    }
  }
}

template <class T>
void activation_forward(const ActivationCall& c, int64_t begin, int64_t end) {
  switch (c.kind) {
  case Activate::silu:
    return activation_forward_rows<T, Activate::silu>(c, begin, end);
  case Activate::gelu:
    return activation_forward_rows<T, Activate::gelu>(c, begin, end);
  case Activate::gelu_tanh:
    return activation_forward_rows<T, Activate::gelu_tanh>(c, begin, end);
  }
}

template <class T>
void activation_backward(const ActivationCall& c, int64_t begin, int64_t end) {
  switch (c.kind) {
  case Activate::silu:
    return activation_backward_rows<T, Activate::silu>(c, begin, end);
  case Activate::gelu:
    return activation_backward_rows<T, Activate::gelu>(c, begin, end);
  case Activate::gelu_tanh:
    return activation_backward_rows<T, Activate::gelu_tanh>(c, begin, end);
  }
}

template <class T>
void vocab_forward(const VocabCall& c, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T* z = static_cast<const T*>(c.z) + r * c.columns;
    float top = -kInfinity;
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < c.entries; ++i) {
      const float x = wide(z[i]);
      top = x > top ? x : top;
    }
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < c.entries; ++i) {
      sum += exp_fast(wide(z[i]) - top);
    }
    const int64_t own = c.labels[r] - c.first;
    c.top[r] = top;
    c.sum[r] = sum;
    c.target[r] = own >= 0 && own < c.entries ? wide(z[own]) : 0;
  }
}

template <class T>
void vocab_backward(const VocabCall& c, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    T* z = static_cast<T*>(c.z) + r * c.columns;
    const float lse = c.lse[r];
    const float scale = c.scale[r];
    const int64_t own = c.labels[r] - c.first;
    const bool mine = own >= 0 && own < c.entries;
    const float share = mine ? exp_fast(wide(z[own]) - lse) : 0;
#pragma omp simd
    for (int64_t i = 0; i < c.entries; ++i) {
      z[i] = narrow<T>(exp_fast(wide(z[i]) - lse) * scale);
    }
    for (int64_t i = c.entries; i < c.columns; ++i) {
      z[i] = T{};
    }
    if (mine) {
      z[own] = narrow<T>((share - 1) * scale);
    }
  }
}

/// Columns from begin to end of the sum over rows, added to `out`.
template <class T>
void add_row_sums(
    const void* x, int64_t rows, int64_t columns, float* out, int64_t begin, int64_t end
) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* from = static_cast<const T*>(x) + r * columns;
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      out[i] += wide(from[i]);
    }
  }
}

template <class T>
RowKernels row_kernels() {
  return {
      .norm_forward = norm_forward<T>,
      .norm_backward = norm_backward<T>,
      .rotary = rotary<T>,
      .dropout = dropout<T>,
      .activation_forward = activation_forward<T>,
      .activation_backward = activation_backward<T>,
      .vocab_forward = vocab_forward<T>,
      .vocab_backward = vocab_backward<T>,
      .add_row_sums = add_row_sums<T>};
}

} // namespace

const RowKernels& row_kernels_bf16() {
  static const RowKernels kKernels = row_kernels<Bf16>();
  return kKernels;
}

const RowKernels& row_kernels_fp32() {
  static const RowKernels kKernels = row_kernels<float>();
  return kKernels;
}

} // namespace mh::kernels::MH_LEVEL
