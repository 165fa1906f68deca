/// Attention over tiles: scores, a running soft max, the mix; and their gradients. Scores of a tile
/// are all that ever exists of the [queries, keys] matrix.
///
/// Source:  arXiv:2307.08691 (the order of the loops and what is saved)

#include "core/kernels/level/pack.hpp"
#include "core/kernels/level/table.hpp"

#include <cmath>

namespace mh::kernels::MH_LEVEL {

namespace {

/// Hands out parts of one block of memory, each on a cache line of its own.
class Arena {
public:
  explicit Arena(void* memory)
      : next_(static_cast<char*>(memory)) {}

  [[nodiscard]] size_t used(const void* memory) const {
    return static_cast<size_t>(next_ - static_cast<const char*>(memory));
  }

  template <class T>
  T* take(int64_t count) {
    auto* part = reinterpret_cast<T*>(next_);
    next_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return part;
  }

private:
  char* next_;
};

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

float largest(const float* s, int64_t n) {
  float top = -kInfinity;
#pragma omp simd reduction(max : top)
  for (int64_t j = 0; j < n; ++j) {
    top = s[j] > top ? s[j] : top;
  }
  return top;
}

/// p = s = 2^(s * c - top), and their sum.
///
/// Two loops: g++ 12 adds up wrong values where one loop sums floats and narrows them.
template <class T>
float exponentials(T* p, float* s, int64_t n, float c, float top) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < n; ++j) {
    s[j] = exp2_fast(s[j] * c - top);
    sum += s[j];
  }
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) {
    p[j] = narrow<T>(s[j]);
  }
  return sum;
}

template <class T>
struct ForwardSpace {
  ForwardSpace(void* memory, int64_t dim) {
    Arena arena(memory);
    q = arena.take<T>(kTile * dim);
    p = arena.take<T>(kTile * kStrip);
    s = arena.take<float>(kTile * kStrip);
    o = arena.take<float>(kTile * dim);
    top = arena.take<float>(kTile);
    sum = arena.take<float>(kTile);
    bytes = arena.used(memory);
  }

  T *q, *p;
  float *s, *o, *top, *sum;
  size_t bytes;
};

/// The running soft max over one run of key tiles; what lies in `o` is scaled to the new maximum.
template <class T>
void soft_max(
    const AttentionCall& c,
    ForwardSpace<T>& w,
    int64_t b,
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
      if (c.cover(b, tile, first_key_tile + t) == some) {
        const int64_t key = b * padded_keys + (first_key_tile + t) * kTile;
        hide(
            s + t * kTile,
            c.mask,
            b * padded_queries + tile * kTile + i,
            c.mask.position + key,
            c.mask.key_segment + key
        );
      }
    }
    const float found = largest(s, tiles * kTile) * scale;
    const float top = found > w.top[i] ? found : w.top[i];
    const float base = top == -kInfinity ? 0.0F : top;
    const float sum = exponentials(w.p + i * kStrip, s, tiles * kTile, scale, base);
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
    const Products& products,
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
    product(products, padded, width, dim, dim, kStrip, kStrip, false, w.q, k, w.s);
    soft_max(c, w, b, tile, rows, t, end - t);
    product(products, padded, dim, width, kStrip, dim, dim, true, w.p, v, w.o);
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
    const Products& products,
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

/// One key head's operands. Tiles of queries are packed once per head, tiles of keys as they come.
template <class T>
struct BackwardSpace {
  BackwardSpace(void* memory, const AttentionCall& c) {
    Arena arena(memory);
    const int64_t queries = c.query_tiles() * kTile * c.dim;
    const int64_t keys = c.key_tiles() * kTile * c.dim;
    q_columns = arena.take<T>(queries);
    q_pairs = arena.take<T>(queries);
    d_columns = arena.take<T>(queries);
    d_pairs = arena.take<T>(queries);
    dq = arena.take<float>(queries);
    dk = arena.take<float>(keys);
    dv = arena.take<float>(keys);
    base = arena.take<float>(c.query_tiles() * kTile);
    delta = arena.take<float>(c.query_tiles() * kTile);
    k = arena.take<T>(kTile * c.dim);
    v = arena.take<T>(kTile * c.dim);
    k_transposed = arena.take<T>(kTile * c.dim);
    p = arena.take<T>(kTile * kTile);
    ds = arena.take<T>(kTile * kTile);
    ds_pairs = arena.take<T>(kTile * kTile);
    s = arena.take<float>(kTile * kTile);
    dp = arena.take<float>(kTile * kTile);
    bytes = arena.used(memory);
  }

  T *q_columns, *q_pairs, *d_columns, *d_pairs; // queries and the output's gradients
  float* dq;                                    // [tile][dim, kTile]: transposed
  float *dk, *dv;                               // [key, dim]
  float *base, *delta;                          // of each query: lse in base 2; sum of out * dout
  T *k, *v, *k_transposed, *p, *ds, *ds_pairs;
  float *s, *dp;
  size_t bytes;
};

template <class I, class T>
void pack_queries(const AttentionCall& c, BackwardSpace<T>& w, int64_t b, int64_t h) {
  const int64_t dim = c.dim;
  for (int64_t tile = 0; tile < c.query_tiles(); ++tile) {
    const int64_t first = tile * kTile;
    const int64_t rows = c.queries - first < kTile ? c.queries - first : kTile;
    const int64_t at = first * dim;
    const I* q = row<I>(c.q, first, b, h);
    const I* d = row<I>(c.dout, first, b, h);
    pack_right_transposed(w.q_columns + at, q, c.q.seq, rows, kTile, dim, kTile);
    pack_right(w.q_pairs + at, q, c.q.seq, rows, kTile, dim);
    pack_right_transposed(w.d_columns + at, d, c.dout.seq, rows, kTile, dim, kTile);
    pack_right(w.d_pairs + at, d, c.dout.seq, rows, kTile, dim);
    for (int64_t i = 0; i < kTile; ++i) {
      w.base[first + i] = kInfinity;
      w.delta[first + i] = 0;
      if (i < rows) {
        const float lse = c.lse[(b * c.heads + h) * c.queries + first + i];
        w.base[first + i] = lse == -kInfinity ? kInfinity : lse * kLog2e;
        const I* out = row<I>(c.out, first + i, b, h);
        const I* dout = d + i * c.dout.seq;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t e = 0; e < dim; ++e) {
          sum += wide(out[e]) * wide(dout[e]);
        }
        w.delta[first + i] = sum;
      }
    }
  }
}

/// Probabilities of a tile, transposed, from its scores, and from them the scores' gradients.
template <class T>
void probabilities(
    const AttentionCall& c, BackwardSpace<T>& w, int64_t b, int64_t query_tile, int64_t key_tile
) {
  const float scale = c.scale * kLog2e;
  const int64_t query = query_tile * kTile;
  const float* base = w.base + query;
  const float* delta = w.delta + query;
  if (c.cover(b, query_tile, key_tile) == some) {
    const int64_t at = b * c.query_tiles() * kTile + query;
    const int32_t* low = c.mask.low + at;
    const int32_t* high = c.mask.high + at;
    const int32_t* own = c.mask.query_segment + at;
    for (int64_t j = 0; j < kTile; ++j) {
      const int64_t key = (b * c.key_tiles() + key_tile) * kTile + j;
      const int32_t position = c.mask.position[key];
      const int32_t segment = c.mask.key_segment[key];
      float* s = w.s + j * kTile;
#pragma omp simd
      for (int64_t i = 0; i < kTile; ++i) {
        const bool seen = (position >= low[i]) & (position <= high[i]) & (segment == own[i]);
        s[i] = seen ? s[i] : -kInfinity;
      }
    }
  }
  for (int64_t j = 0; j < kTile; j += kPair<T>) {
    for (int64_t r = j; r < j + kPair<T>; ++r) {
      const float* s = w.s + r * kTile;
      const float* dp = w.dp + r * kTile;
      T* p = w.p + r * kTile;
      T* ds = w.ds + r * kTile;
#pragma omp simd
      for (int64_t i = 0; i < kTile; ++i) {
        const float e = exp2_fast(s[i] * scale - base[i]);
        p[i] = narrow<T>(e);
        ds[i] = narrow<T>(e * (dp[i] - delta[i]));
      }
    }
    if constexpr (kPair<T> == 2) {
      const T* first = w.ds + j * kTile;
      const T* second = first + kTile;
      auto* pairs = reinterpret_cast<uint32_t*>(w.ds_pairs + j * kTile);
#pragma omp simd
      for (int64_t i = 0; i < kTile; ++i) {
        pairs[i] = first[i].bits | static_cast<uint32_t>(second[i].bits) << 16;
      }
    }
  }
}

template <class I, class T>
void backward_head(
    const AttentionCall& c, const Products& products, BackwardSpace<T>& w, int64_t b, int64_t h
) {
  const int64_t dim = c.dim;
  const int64_t kv = h / c.group();
  pack_queries<I>(c, w, b, h);
  for (int64_t i = 0; i < c.query_tiles() * kTile * dim; ++i) {
    w.dq[i] = 0;
  }
  for (int64_t key_tile = 0; key_tile < c.key_tiles(); ++key_tile) {
    const int64_t first = key_tile * kTile;
    const int64_t count = c.keys - first < kTile ? c.keys - first : kTile;
    const I* k = row<I>(c.k, first, b, kv);
    pack_rows(w.k, k, c.k.seq, count, kTile, dim);
    pack_transposed(w.k_transposed, k, c.k.seq, count, kTile, dim);
    pack_rows(w.v, row<I>(c.v, first, b, kv), c.v.seq, count, kTile, dim);
    const T* right = kPair<T> == 2 ? w.ds_pairs : w.ds;
    for (int64_t tile = 0; tile < c.query_tiles(); ++tile) {
      if (c.cover(b, tile, key_tile) == none) {
        continue;
      }
      const int64_t at = tile * kTile * dim;
      product(products, kTile, kTile, dim, dim, kTile, kTile, false, w.k, w.q_columns + at, w.s);
      product(products, kTile, kTile, dim, dim, kTile, kTile, false, w.v, w.d_columns + at, w.dp);
      probabilities(c, w, b, tile, key_tile);
      product(
          products,
          kTile,
          dim,
          kTile,
          kTile,
          dim,
          dim,
          true,
          w.p,
          w.d_pairs + at,
          w.dv + first * dim
      );
      product(
          products,
          kTile,
          dim,
          kTile,
          kTile,
          dim,
          dim,
          true,
          w.ds,
          w.q_pairs + at,
          w.dk + first * dim
      );
      product(
          products, dim, kTile, kTile, kTile, kTile, kTile, true, w.k_transposed, right, w.dq + at
      );
    }
  }
  for (int64_t i = 0; i < c.queries; ++i) {
    I* dq = row_out<I>(c.dq, i, b, h);
    const float* from = w.dq + i / kTile * kTile * dim + i % kTile;
    for (int64_t d = 0; d < dim; ++d) {
      dq[d] = narrow<I>(from[d * kTile] * c.scale);
    }
  }
}

template <class I, class T>
void backward(
    const AttentionCall& c, const Products& products, void* memory, int64_t begin, int64_t end
) {
  BackwardSpace<T> w(memory, c);
  for (int64_t task = begin; task < end; ++task) {
    const int64_t b = task / c.kv_heads;
    const int64_t kv = task % c.kv_heads;
    for (int64_t i = 0; i < c.key_tiles() * kTile * c.dim; ++i) {
      w.dk[i] = 0;
      w.dv[i] = 0;
    }
    for (int64_t h = kv * c.group(); h < (kv + 1) * c.group(); ++h) {
      backward_head<I>(c, products, w, b, h);
    }
    for (int64_t j = 0; j < c.keys; ++j) {
      I* dk = row_out<I>(c.dk, j, b, kv);
      I* dv = row_out<I>(c.dv, j, b, kv);
#pragma omp simd
      for (int64_t d = 0; d < c.dim; ++d) {
        dk[d] = narrow<I>(w.dk[j * c.dim + d] * c.scale);
        dv[d] = narrow<I>(w.dv[j * c.dim + d]);
      }
    }
  }
}

} // namespace

template <class I, class T>
AttentionKernels attention_kernels() {
  return {
      .pack_keys = [](const AttentionCall& c, void* k, void* v, int64_t begin, int64_t end
                   ) { pack_keys<I>(c, static_cast<T*>(k), static_cast<T*>(v), begin, end); },
      .forward =
          [](const AttentionCall& c,
             const Products& products,
             const void* k,
             const void* v,
             void* memory,
             int64_t begin,
             int64_t end) {
            forward<I>(
                c, products, static_cast<const T*>(k), static_cast<const T*>(v), memory, begin, end
            );
          },
      .backward = backward<I, T>,
      .forward_bytes = [](const AttentionCall& c) { return ForwardSpace<T>(nullptr, c.dim).bytes; },
      .backward_bytes = [](const AttentionCall& c) { return BackwardSpace<T>(nullptr, c).bytes; },
      .element = sizeof(T)};
}

template AttentionKernels attention_kernels<Bf16, Bf16>();
template AttentionKernels attention_kernels<Bf16, float>();
template AttentionKernels attention_kernels<float, float>();

} // namespace mh::kernels::MH_LEVEL
