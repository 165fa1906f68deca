/// Attention over tiles: scores, a running softmax, the mix. Scores of a tile are all that ever
/// exists of the [queries, keys] matrix.
///
/// Source:  arXiv:2307.08691 (the order of the loops and what is saved)

#include "core/level/arena.hpp"
#include "core/level/pack.hpp"
#include "core/level/random.hpp"
#include "core/level/table.hpp"

#include <cmath>

namespace mh::kernels::MH_LEVEL {

namespace {

/// Scores of a row's tile to which a mask applies: -inf where the query does not see the key.
void hide(
    float* s, const MaskView& m, int64_t query, const int32_t* position, const int32_t* segment
) {
  const int32_t low = m.low[query];
  const int32_t high = m.high[query];
  const int32_t own = m.query_segment[query];
#pragma omp simd
  for (int64_t j = 0; j < kTile; ++j) {
    const bool seen = (position[j] >= low) & (position[j] <= high) & (segment[j] == own);
    s[j] = seen ? s[j] : -kInfinity;
  }
}

/// Scores of a row's tile, of which scale * score stays within the cap.
void bound(float* s, float scale, float cap) {
  const float inward = scale / cap, outward = cap / scale;
#pragma omp simd
  for (int64_t j = 0; j < kTile; ++j) {
    s[j] = outward * tanh_fast(s[j] * inward);
  }
}

/// Adds the bias to a query's scores of one tile of keys.
void add_bias(float* s, const BiasView& bias, int64_t h, int32_t token, const int32_t* position) {
  const float* values = bias.of_head(h);
#pragma omp simd
  for (int64_t j = 0; j < kTile; ++j) {
    s[j] += values[bias.column(position[j], token)];
  }
}

float largest(const float* s, int64_t n) {
#ifdef __AVX512BF16__ // whole tiles, in vectors that do not wait for one another
  const auto greater = [](__m512 a, __m512 b) { return a > b ? a : b; };
  __m512 tops[4];
  for (int64_t i = 0; i < 4; ++i) {
    tops[i] = _mm512_loadu_ps(s + 16 * i);
  }
  for (int64_t j = kTile; j < n; j += kTile) {
    for (int64_t i = 0; i < 4; ++i) {
      tops[i] = greater(_mm512_loadu_ps(s + j + 16 * i), tops[i]);
    }
  }
  return fold(greater(greater(tops[0], tops[1]), greater(tops[2], tops[3])), greater);
#else
  float top = -kInfinity;
#pragma omp simd reduction(max : top)
  for (int64_t j = 0; j < n; ++j) {
    top = s[j] > top ? s[j] : top;
  }
  return top;
#endif
}

/// p = 2^(s * c - top), and their sum; p may be s.
float exponentials(float* p, const float* s, int64_t n, float c, float top) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < n; ++j) {
    p[j] = exp2_fast(s[j] * c - top);
    sum += p[j];
  }
  return sum;
}

/// The same rounded, of tiles, their sum not; s may change.
float exponentials(Bf16* p, float* s, int64_t n, float c, float top) {
#ifdef __AVX512BF16__
  const __m512 scale = _mm512_set1_ps(c), base = _mm512_set1_ps(top);
  const auto at = [&](int64_t j) {
    return exp2_coarse(_mm512_fmsub_ps(_mm512_loadu_ps(s + j), scale, base));
  };
  __m512 first = _mm512_setzero_ps(), second = first;
  for (int64_t j = 0; j < n; j += 32) {
    const __m512 low = at(j), high = at(j + 16);
    _mm512_storeu_si512(p + j, narrow(low, high));
    first += low;
    second += high;
  }
  return fold(first + second, [](__m512 a, __m512 b) { return a + b; });
#else // two loops: g++ 12 adds up wrong values where one loop sums floats and narrows
  const float sum = exponentials(s, s, n, c, top);
  narrow_row(p, s, n);
  return sum;
#endif
}

/// Drops some of a row's probabilities of one tile of keys, and scales the others up.
void drop(const AttentionCall& c, float* s, int64_t b, int64_t h, int32_t token, int64_t key) {
  FeatureWords room;
  const uint32_t* words = feature_words(
      c.dropout.key,
      c.feature(h, key),
      static_cast<uint32_t>(token),
      static_cast<uint64_t>(c.dropout.samples[b]),
      room
  );
  const uint32_t threshold = c.dropout.threshold; // not read under a condition: that is a branch
  const float scale = c.dropout.keep_scale;
#pragma omp simd
  for (int64_t j = 0; j < kTile; ++j) {
    s[j] = words[j] >= threshold ? s[j] * scale : 0.0F;
  }
}

template <class T>
struct ForwardSpace {
  ForwardSpace(void* memory, int64_t dim) {
    Arena arena(memory);
    q = arena.take<T>(kTile * dim);
    s = arena.take<float>(kTile * kStrip);
    if constexpr (kPair<T> == 2) {
      p = arena.take<T>(kTile * kStrip);
    } else { // nothing is rounded
      p = s;
    }
    o = arena.take<float>(kTile * dim);
    top = arena.take<float>(kTile);
    sum = arena.take<float>(kTile);
    bytes = arena.used(memory);
  }

  T *q, *p;
  float *s, *o, *top, *sum;
  size_t bytes;
};

/// The running softmax over one run of key tiles; what lies in `o` is scaled to the new maximum.
template <class T>
void soft_max(
    const AttentionCall& c,
    ForwardSpace<T>& w,
    int64_t b,
    int64_t h,
    int64_t tile,
    int64_t rows,
    int64_t first_key_tile,
    int64_t tiles
) {
  const float scale = c.scale * kLog2e;
  const int64_t padded_queries = c.query_tiles() * kTile;
  const int64_t padded_keys = c.key_tiles() * kTile;
  for (int64_t i = 0; i < rows; ++i) {
    float* s = w.s + i * kStrip;
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t key = b * padded_keys + (first_key_tile + t) * kTile;
      const int64_t query = b * padded_queries + tile * kTile + i;
      if (c.cap > 0) {
        bound(s + t * kTile, c.scale, c.cap);
      }
      if (c.bias.values != nullptr) {
        add_bias(s + t * kTile, c.bias, h, c.mask.token[query], c.mask.position + key);
      }
      if (c.cover(b, tile, first_key_tile + t) == some) {
        hide(s + t * kTile, c.mask, query, c.mask.position + key, c.mask.key_segment + key);
      }
    }
    const float found = largest(s, tiles * kTile) * scale;
    const float top = found > w.top[i] ? found : w.top[i];
    const float base = top == -kInfinity ? 0.0F : top;
    T* p = w.p + i * kStrip;
    float sum;
    if (c.dropout.threshold == 0) {
      sum = exponentials(p, s, tiles * kTile, scale, base);
    } else {
      sum = exponentials(s, s, tiles * kTile, scale, base);
      for (int64_t t = 0; t < tiles; ++t) {
        const int32_t token = c.mask.token[b * padded_queries + tile * kTile + i];
        drop(c, s + t * kTile, b, h, token, (first_key_tile + t) * kTile);
      }
      if constexpr (kPair<T> == 2) {
        narrow_row(p, s, tiles * kTile);
      }
    }
    if (top != w.top[i]) {
      const float factor = exp2_fast(w.top[i] - base);
      w.sum[i] *= factor;
      float* o = w.o + i * c.dim;
#pragma omp simd
      for (int64_t d = 0; d < c.dim; ++d) {
        o[d] *= factor;
      }
      w.top[i] = top;
    }
    w.sum[i] += sum;
  }
}

template <class I, class T>
void forward_tile(
    const AttentionCall& c,
    const ProductKernels& products,
    const T* keys,
    const T* values,
    ForwardSpace<T>& w,
    int64_t b,
    int64_t h,
    int64_t tile
) {
  const int64_t first = tile * kTile;
  const int64_t rows = c.queries - first < kTile ? c.queries - first : kTile;
  const int64_t padded = (rows + 15) / 16 * 16;
  const int64_t dim = c.dim;
  const int64_t packed = (b * c.kv_heads + h / c.group()) * c.strips() * kStrip * dim;
  pack_rows(w.q, row<I>(c.q, first, b, h), c.q.seq, rows, padded, dim);
  for (int64_t i = 0; i < padded; ++i) {
    w.top[i] = -kInfinity;
    w.sum[i] = 0;
  }
  for (int64_t i = 0; i < padded * dim; ++i) {
    w.o[i] = 0;
  }
  for (int64_t t = 0; t < c.key_tiles();) {
    // A run of visible tiles within one strip.
    int64_t end = t;
    const int64_t strip = t * kTile / kStrip;
    while (end < c.key_tiles() && end * kTile / kStrip == strip && c.cover(b, tile, end) != none) {
      ++end;
    }
    if (end == t) {
      ++t;
      continue;
    }
    const int64_t column = t * kTile - strip * kStrip;
    const int64_t width = (end - t) * kTile;
    const T* k = keys + packed + strip * kStrip * dim + column * kPair<T>;
    const T* v = values + packed + t * kTile * dim;
    products({padded, width, dim, dim, kStrip, kStrip}, w.q, k, w.s);
    soft_max(c, w, b, h, tile, rows, t, end - t);
    products({padded, dim, width, kStrip, dim, dim, /*add=*/true}, w.p, v, w.o);
    t = end;
  }
  for (int64_t i = 0; i < rows; ++i) {
    const float sum = w.sum[i];
    const float inverse = sum > 0 ? 1 / sum : (sum == 0 ? 0.0F : sum); // NaN stays
    I* out = row_out<I>(c.out, first + i, b, h);
    const float* o = w.o + i * dim;
#pragma omp simd
    for (int64_t d = 0; d < dim; ++d) {
      out[d] = narrow<I>(o[d] * inverse);
    }
    c.lse[(b * c.heads + h) * c.queries + first + i] =
        sum == 0 ? -kInfinity : w.top[i] * kLn2 + std::log(sum);
  }
}

template <class I, class T>
void pack_keys(const AttentionCall& c, T* keys, T* values, int64_t begin, int64_t end) {
  for (int64_t task = begin; task < end; ++task) {
    const int64_t strip = task % c.strips();
    const int64_t h = task / c.strips() % c.kv_heads;
    const int64_t b = task / c.strips() / c.kv_heads;
    const int64_t first = strip * kStrip;
    const int64_t count = c.keys - first < kStrip ? c.keys - first : kStrip;
    const int64_t at = task * kStrip * c.dim;
    pack_right_transposed(
        keys + at, row<I>(c.k, first, b, h), c.k.seq, count, kStrip, c.dim, kStrip
    );
    pack_right(values + at, row<I>(c.v, first, b, h), c.v.seq, count, kStrip, c.dim);
  }
}

template <class I, class T>
void forward(
    const AttentionCall& c,
    const ProductKernels& products,
    const T* keys,
    const T* values,
    void* memory,
    int64_t begin,
    int64_t end
) {
  ForwardSpace<T> w(memory, c.dim);
  for (int64_t task = begin; task < end; ++task) {
    const int64_t tile = task % c.query_tiles();
    const int64_t h = task / c.query_tiles() % c.heads;
    const int64_t b = task / c.query_tiles() / c.heads;
    forward_tile<I>(c, products, keys, values, w, b, h, tile);
  }
}

} // namespace

template <class I, class T>
void set_attention_forward(AttentionKernels& kernels) {
  kernels.pack_keys = [](const AttentionCall& c, void* k, void* v, int64_t begin, int64_t end) {
    pack_keys<I>(c, static_cast<T*>(k), static_cast<T*>(v), begin, end);
  };
  kernels.forward = [](const AttentionCall& c,
                       const ProductKernels& products,
                       const void* k,
                       const void* v,
                       void* memory,
                       int64_t begin,
                       int64_t end) {
    forward<I>(c, products, static_cast<const T*>(k), static_cast<const T*>(v), memory, begin, end);
  };
  kernels.forward_bytes = [](const AttentionCall& c) {
    return ForwardSpace<T>(nullptr, c.dim).bytes;
  };
  kernels.element = sizeof(T);
}

template void set_attention_forward<Bf16, Bf16>(AttentionKernels&);
template void set_attention_forward<Bf16, float>(AttentionKernels&);
template void set_attention_forward<float, float>(AttentionKernels&);

} // namespace mh::kernels::MH_LEVEL
