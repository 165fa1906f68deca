/// The gradients of attention over tiles: scores are recomputed, transposed, so that each product
/// reads what the one before it wrote.
///
/// Source:  arXiv:2307.08691, algorithm 2

#include "core/level/arena.hpp"
#include "core/level/pack.hpp"
#include "core/level/random.hpp"
#include "core/level/table.hpp"

namespace mh::kernels::MH_LEVEL {

namespace {

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
    s = arena.take<float>(kTile * kTile);
    dp = arena.take<float>(kTile * kTile);
    if constexpr (kPair<T> == 2) {
      p = arena.take<T>(kTile * kTile);
      ds = arena.take<T>(kTile * kTile);
      ds_pairs = arena.take<T>(kTile * kTile);
    } else { // nothing is rounded, or paired
      p = s;
      ds = ds_pairs = dp;
    }
    kept = arena.take<float>(c.dropout.threshold == 0 ? 0 : kTile * kTile);
    slope = arena.take<float>(c.cap > 0 ? kTile * kTile : 0);
    bytes = arena.used(memory);
  }

  T *q_columns, *q_pairs, *d_columns, *d_pairs; // queries and the output's gradients
  float* dq;                                    // [tile][dim, kTile]: transposed
  float *dk, *dv;                               // [key, dim]
  float *base, *delta;                          // [query]: lse in base 2; sum of out * dout
  T *k, *v, *k_transposed, *p, *ds, *ds_pairs;
  float *s, *dp, *kept; // kept: what dropout multiplies each probability by
  float* slope;         // derivative of the scores that a cap bounds by those before it
  size_t bytes;
};

/// Tiles from `begin` to `end`.
struct TileRange {
  int64_t begin, end;
};

/// The c-th of `cuts` parts of so many tiles.
TileRange part(int64_t tiles, int64_t c, int64_t cuts) {
  return {tiles * c / cuts, tiles * (c + 1) / cuts};
}

template <class I, class T>
void pack_queries(
    const AttentionCall& c, BackwardSpace<T>& w, int64_t b, int64_t h, const TileRange& queries
) {
  const int64_t dim = c.dim;
  for (int64_t tile = queries.begin; tile < queries.end; ++tile) {
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

/// The dropout factors of a tile's probabilities, transposed: [key, query].
template <class T>
void drop_tile(
    const AttentionCall& c,
    BackwardSpace<T>& w,
    int64_t b,
    int64_t h,
    int64_t query_tile,
    int64_t key_tile
) {
  uint32_t words[4][kTile];
  const uint32_t threshold = c.dropout.threshold; // not read under a condition: that is a branch
  const float scale = c.dropout.keep_scale;
  const int32_t* token = c.mask.token + (b * c.query_tiles() + query_tile) * kTile;
  const auto sample = static_cast<uint64_t>(c.dropout.samples[b]);
  const int64_t first = c.feature(h, key_tile * kTile);
  for (int64_t group = first / 4; group <= (first + kTile - 1) / 4; ++group) {
    token_words(c.dropout.key, static_cast<uint64_t>(group), token, sample, words);
    for (int64_t word = 0; word < 4; ++word) {
      const int64_t j = 4 * group + word - first;
      if (j < 0 || j >= kTile) {
        continue;
      }
      float* kept = w.kept + j * kTile;
#pragma omp simd
      for (int64_t i = 0; i < kTile; ++i) {
        kept[i] = words[word][i] >= threshold ? scale : 0.0F;
      }
    }
  }
}

#ifdef __AVX512BF16__
/// Writes probabilities and the scores' gradients of two keys' rows, rounded at once, and the
/// gradients again in pairs of the two rows.
void probabilities_of_two(
    const float* s,
    const float* dp,
    float scale,
    const float* base,
    const float* delta,
    Bf16* p,
    Bf16* ds,
    Bf16* ds_pairs
) {
  const __m512 scales = _mm512_set1_ps(scale);
  for (int64_t i = 0; i < kTile; i += 32) {
    __m512 e[2][2], d[2][2]; // [row][half]
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t first = i + 16 * half;
      const __m512 bases = _mm512_loadu_ps(base + first), deltas = _mm512_loadu_ps(delta + first);
      for (int64_t r = 0; r < 2; ++r) {
        const int64_t at = r * kTile + first;
        e[r][half] = exp2_coarse(_mm512_fmsub_ps(_mm512_loadu_ps(s + at), scales, bases));
        d[r][half] = e[r][half] * (_mm512_loadu_ps(dp + at) - deltas);
      }
      _mm512_storeu_si512(ds_pairs + 2 * first, interleave(narrow(d[0][half], d[1][half])));
    }
    for (int64_t r = 0; r < 2; ++r) {
      _mm512_storeu_si512(p + r * kTile + i, narrow(e[r][0], e[r][1]));
      _mm512_storeu_si512(ds + r * kTile + i, narrow(d[r][0], d[r][1]));
    }
  }
}
#endif

/// Runs over the pairs of a tile, transposed, with the bias's column of each.
template <class Run>
void for_columns(
    const AttentionCall& c, int64_t b, int64_t query_tile, int64_t key_tile, const Run& run
) {
  const int32_t* position = c.mask.position + (b * c.key_tiles() + key_tile) * kTile;
  const int32_t* token = c.mask.token + (b * c.query_tiles() + query_tile) * kTile;
  for (int64_t j = 0; j < kTile; ++j) {
    for (int64_t i = 0; i < kTile; ++i) {
      run(j * kTile + i, c.bias.column(position[j], token[i]));
    }
  }
}

/// Bounds a tile's scores, so that scale * score stays within the cap, and keeps the slopes.
template <class T>
void bound_tile(const AttentionCall& c, BackwardSpace<T>& w) {
  const float inward = c.scale / c.cap, outward = c.cap / c.scale;
#pragma omp simd
  for (int64_t i = 0; i < kTile * kTile; ++i) {
    const float t = tanh_fast(w.s[i] * inward);
    w.s[i] = outward * t;
    w.slope[i] = 1 - t * t;
  }
}

/// Probabilities of a tile, transposed, from its scores, and from them the scores' gradients; both
/// first in place, and with a bias left there.
template <class T>
void probabilities(
    const AttentionCall& c,
    BackwardSpace<T>& w,
    int64_t b,
    int64_t h,
    int64_t query_tile,
    int64_t key_tile
) {
  const float scale = c.scale * kLog2e;
  const int64_t query = query_tile * kTile;
  const float* base = w.base + query;
  const float* delta = w.delta + query;
  if (c.cap > 0) {
    bound_tile(c, w);
  }
  if (c.bias.values != nullptr) {
    const float* values = c.bias.of_head(h);
    for_columns(c, b, query_tile, key_tile, [&](int64_t pair, int32_t column) {
      w.s[pair] += values[column];
    });
  }
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
#ifdef __AVX512BF16__
    if constexpr (kPair<T> == 2) {
      if (c.dropout.threshold == 0 && c.bias.values == nullptr && c.cap == 0) {
        const int64_t at = j * kTile;
        probabilities_of_two(
            w.s + at, w.dp + at, scale, base, delta, w.p + at, w.ds + at, w.ds_pairs + at
        );
        continue;
      }
    }
#endif
    for (int64_t r = j; r < j + kPair<T>; ++r) {
      float* s = w.s + r * kTile;
      float* dp = w.dp + r * kTile;
      if (c.dropout.threshold == 0) {
#pragma omp simd
        for (int64_t i = 0; i < kTile; ++i) {
          const float e = exp2_fast(s[i] * scale - base[i]);
          s[i] = e;
          dp[i] = e * (dp[i] - delta[i]);
        }
      } else {
        const float* kept = w.kept + r * kTile;
#pragma omp simd
        for (int64_t i = 0; i < kTile; ++i) {
          const float e = exp2_fast(s[i] * scale - base[i]);
          s[i] = e * kept[i];
          dp[i] = e * (dp[i] * kept[i] - delta[i]);
        }
      }
    }
    if (c.cap > 0) {
      float* dp = w.dp + j * kTile;
      const float* slope = w.slope + j * kTile;
#pragma omp simd
      for (int64_t i = 0; i < kPair<T> * kTile; ++i) {
        dp[i] *= slope[i];
      }
    }
    if constexpr (kPair<T> == 2) {
      narrow_row(w.p + j * kTile, w.s + j * kTile, 2 * kTile);
      narrow_row(w.ds + j * kTile, w.dp + j * kTile, 2 * kTile);
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

/// Queries' gradients of some tiles, which lie transposed.
template <class I, class T>
void store_queries(
    const AttentionCall& c,
    const BackwardSpace<T>& w,
    int64_t b,
    int64_t h,
    const TileRange& queries
) {
  const int64_t dim = c.dim;
  const int64_t whole = dim / kWords * kWords;
  float block[kTile * kWords];
  for (int64_t tile = queries.begin; tile < queries.end; ++tile) {
    const int64_t first = tile * kTile;
    const int64_t rows = c.queries - first < kTile ? c.queries - first : kTile;
    const float* from = w.dq + first * dim;
    for (int64_t d = 0; d < whole; d += kWords) {
      for (int64_t i = 0; i < kTile; i += kWords) {
        transpose_words(block + i * kWords, kWords, [&](int64_t row) {
          return load_words(from + (d + row) * kTile + i);
        });
      }
      for (int64_t i = 0; i < rows; ++i) {
        I* dq = row_out<I>(c.dq, first + i, b, h) + d;
#pragma omp simd
        for (int64_t e = 0; e < kWords; ++e) {
          dq[e] = narrow<I>(block[i * kWords + e] * c.scale);
        }
      }
    }
    for (int64_t i = 0; i < rows; ++i) {
      I* dq = row_out<I>(c.dq, first + i, b, h);
      for (int64_t d = whole; d < dim; ++d) {
        dq[d] = narrow<I>(from[d * kTile + i] * c.scale);
      }
    }
  }
}

/// Gradients of keys and values, of queries, or of all of them.
struct Wanted {
  bool keys, queries;
};

/// One query head: adds to the gradients of keys and values, and makes those of queries, from the
/// pairs of a tile among `queries` and one among `keys`.
template <class I, class T>
void backward_head(
    const AttentionCall& c,
    const ProductKernels& products,
    BackwardSpace<T>& w,
    int64_t b,
    int64_t h,
    const TileRange& queries,
    const TileRange& keys,
    const Wanted& wanted
) {
  const int64_t dim = c.dim;
  const int64_t kv = h / c.group();
  pack_queries<I>(c, w, b, h, queries);
  for (int64_t i = queries.begin * kTile * dim; i < queries.end * kTile * dim; ++i) {
    w.dq[i] = 0;
  }
  for (int64_t key_tile = keys.begin; key_tile < keys.end; ++key_tile) {
    const int64_t first = key_tile * kTile;
    const int64_t count = c.keys - first < kTile ? c.keys - first : kTile;
    const I* k = row<I>(c.k, first, b, kv);
    pack_rows(w.k, k, c.k.seq, count, kTile, dim);
    pack_transposed(w.k_transposed, k, c.k.seq, count, kTile, dim, kTile);
    pack_rows(w.v, row<I>(c.v, first, b, kv), c.v.seq, count, kTile, dim);
    float* dk = w.dk + first * dim;
    float* dv = w.dv + first * dim;
    for (int64_t tile = queries.begin; tile < queries.end; ++tile) {
      if (c.cover(b, tile, key_tile) == none) {
        continue;
      }
      const int64_t at = tile * kTile * dim;
      const auto scores = [&](const T* rows, const T* columns, float* out) {
        products({kTile, kTile, dim, dim, kTile, kTile}, rows, columns, out);
      };
      const auto add = [&](const T* shares, const T* pairs, float* out) {
        products({kTile, dim, kTile, kTile, dim, dim, /*add=*/true}, shares, pairs, out);
      };
      scores(w.k, w.q_columns + at, w.s);
      scores(w.v, w.d_columns + at, w.dp);
      if (c.dropout.threshold != 0) {
        drop_tile(c, w, b, h, tile, key_tile);
      }
      probabilities(c, w, b, h, tile, key_tile);
      if (c.bias_gradient != nullptr) {
        float* sums = c.bias_gradient + (b * c.heads + h) * c.bias.distances;
        for_columns(c, b, tile, key_tile, [&](int64_t pair, int32_t column) {
          sums[column] += w.dp[pair];
        });
      }
      if (wanted.keys) {
        add(w.p, w.d_pairs + at, dv);
        add(w.ds, w.q_pairs + at, dk);
      }
      if (wanted.queries) {
        products(
            {dim, kTile, kTile, kTile, kTile, kTile, /*add=*/true},
            w.k_transposed,
            w.ds_pairs,
            w.dq + at
        );
      }
    }
  }
  if (wanted.queries) {
    store_queries<I>(c, w, b, h, queries);
  }
}

/// One key head: all query heads that read it.
template <class I, class T>
void backward_group(
    const AttentionCall& c,
    const ProductKernels& products,
    BackwardSpace<T>& w,
    int64_t b,
    int64_t kv,
    const TileRange& queries,
    const TileRange& keys,
    const Wanted& wanted
) {
  const int64_t dim = c.dim;
  for (int64_t i = keys.begin * kTile * dim; i < keys.end * kTile * dim; ++i) {
    w.dk[i] = 0;
    w.dv[i] = 0;
  }
  for (int64_t h = kv * c.group(); h < (kv + 1) * c.group(); ++h) {
    backward_head<I>(c, products, w, b, h, queries, keys, wanted);
  }
  const int64_t last = keys.end * kTile < c.keys ? keys.end * kTile : c.keys;
  for (int64_t j = keys.begin * kTile; wanted.keys && j < last; ++j) {
    I* dk = row_out<I>(c.dk, j, b, kv);
    I* dv = row_out<I>(c.dv, j, b, kv);
#pragma omp simd
    for (int64_t d = 0; d < dim; ++d) {
      dk[d] = narrow<I>(w.dk[j * dim + d] * c.scale);
      dv[d] = narrow<I>(w.dv[j * dim + d]);
    }
  }
}

template <class I, class T>
void backward(
    const AttentionCall& c, const ProductKernels& products, void* memory, int64_t begin, int64_t end
) {
  BackwardSpace<T> w(memory, c);
  const TileRange all_queries{0, c.query_tiles()};
  const TileRange all_keys{0, c.key_tiles()};
  for (int64_t task = begin; task < end; ++task) {
    const int64_t cut = task % c.cuts;
    const int64_t kv = task / c.cuts % c.kv_heads;
    const int64_t b = task / c.cuts / c.kv_heads;
    if (c.cuts == 1) {
      backward_group<I>(c, products, w, b, kv, all_queries, all_keys, {true, true});
      continue;
    }
    const TileRange keys = part(c.key_tiles(), cut, c.cuts);
    const TileRange queries = part(c.query_tiles(), cut, c.cuts);
    backward_group<I>(c, products, w, b, kv, all_queries, keys, {true, false});
    backward_group<I>(c, products, w, b, kv, queries, all_keys, {false, true});
  }
}

} // namespace

template <class I, class T>
void set_attention_backward(AttentionKernels& kernels) {
  kernels.backward = backward<I, T>;
  kernels.backward_bytes = [](const AttentionCall& c) {
    return BackwardSpace<T>(nullptr, c).bytes;
  };
}

template void set_attention_backward<Bf16, Bf16>(AttentionKernels&);
template void set_attention_backward<Bf16, float>(AttentionKernels&);
template void set_attention_backward<float, float>(AttentionKernels&);

} // namespace mh::kernels::MH_LEVEL
