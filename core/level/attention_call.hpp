#pragma once
/// One call of attention as plain numbers and pointers: shared by the driver, which packs,
/// allocates and shares work among threads, and the kernels of each level.

#include "core/base/bf16.hpp"

#include <cstdint>

namespace mh::kernels {

/// A [seq, batch, heads, dim] tensor whose last dimension is contiguous; strides in elements.
struct Strided {
  void* data;
  int64_t seq, batch, head;
};

constexpr int64_t kTile = 64;         // queries and keys that a mask is decided for at a time
constexpr int64_t kStrip = 4 * kTile; // keys that one product of the forward pass spans
constexpr int32_t kNoKey = INT32_MIN; // segment of keys that fill the last tile up
constexpr int32_t kNoQuery = INT32_MIN + 1;

/// The keys that a query sees: those with low <= position <= high in its segment. Arrays are padded
/// to whole tiles.
struct MaskView {
  const int32_t *low, *high, *query_segment; // [batch, padded queries]
  const int32_t *position, *key_segment;     // [batch, padded keys]
  const int32_t* token;                      // [batch, padded queries]: the query's own position
  const uint8_t* cover;                      // [batch, query tiles, key tiles] of Cover
};

/// Dropout of probabilities: the mask is a function of (key, sample, token, head, key's number).
struct ScoreDropout {
  float keep_scale = 1;   ///< 1 / (1 - p)
  uint32_t threshold = 0; ///< words below it are dropped; 0: no dropout
  uint64_t key = 0;
  const int64_t* samples = nullptr; ///< [batch]
  int64_t first_head = 0;
  int64_t first_key = 0, all_keys = 0;
};

/// The bias that is added to scores, by the distance key's position - query's position from `first`
/// on: [heads, distances], over the scores' scale.
struct BiasView {
  const float* values = nullptr; ///< null: no bias
  int64_t distances = 0;
  int32_t first = 0;

  [[nodiscard]] const float* of_head(int64_t head) const { return values + head * distances; }

  /// The column of a pair; some column where the pair is not seen.
  [[nodiscard]] int32_t column(int32_t position, int32_t token) const {
    const int32_t at = position - token - first;
    const auto last = static_cast<int32_t>(distances) - 1;
    return at < 0 ? 0 : at > last ? last : at;
  }
};

enum Cover : uint8_t { none, some, all };

struct AttentionCall {
  int64_t queries, keys, batch, heads, kv_heads, dim;
  float scale;
  Strided q, k, v, out;
  float*
      lse; // [batch, heads, queries]: log sum exp of the scaled scores, -inf where nothing is seen
  MaskView mask;
  ScoreDropout dropout;
  float cap = 0; ///< scaled scores s become cap tanh(s / cap); 0: they stay. Not with a bias

  // Backward only.
  Strided dout, dq, dk, dv;
  /// Tasks that share a key head, where there are fewer heads than threads: each makes the
  /// gradients of a part of the keys and of a part of the queries, and scores are made once more
  /// for that. No sum depends on it.
  int64_t cuts = 1;
  float* bias_gradient = nullptr; ///< [batch, heads, distances], to be added to; needs `cuts` 1

  BiasView bias{};

  [[nodiscard]] int64_t query_tiles() const { return (queries + kTile - 1) / kTile; }

  [[nodiscard]] int64_t key_tiles() const { return (keys + kTile - 1) / kTile; }

  [[nodiscard]] int64_t strips() const { return (keys + kStrip - 1) / kStrip; }

  [[nodiscard]] int64_t group() const { return heads / kv_heads; }

  /// Number of the probability of a head's key among all of its token, as dropout counts them.
  [[nodiscard]] int64_t feature(int64_t head, int64_t key) const {
    return (dropout.first_head + head) * dropout.all_keys + dropout.first_key + key;
  }

  [[nodiscard]] Cover cover(int64_t b, int64_t query_tile, int64_t key_tile) const {
    return static_cast<Cover>(mask.cover[(b * query_tiles() + query_tile) * key_tiles() + key_tile]
    );
  }
};

/// Elements of each key and value tensor packed for the forward pass.
inline int64_t packed_elements(const AttentionCall& c) {
  return c.batch * c.kv_heads * c.strips() * kStrip * c.dim;
}

/// The sizes of C [m, n] = A [m, k] B [k, n], or of C += A B, and elements from row to row.
struct ProductSize {
  int64_t m, n, k;
  int64_t lda, ldb, ldc;
  bool add = false;
};

/// Two kernels of small products. B of bf16 lies in pairs of rows: element (i, j) at
/// ((i / 2) * ldb + j) * 2 + i % 2.
struct ProductKernels {
  void (*bf16)(const ProductSize& size, const Bf16* a, const Bf16* b, float* c);
  void (*fp32)(const ProductSize& size, const float* a, const float* b, float* c);

  void operator()(const ProductSize& size, const Bf16* a, const Bf16* b, float* c) const {
    bf16(size, a, b, c);
  }

  void operator()(const ProductSize& size, const float* a, const float* b, float* c) const {
    fp32(size, a, b, c);
  }
};

} // namespace mh::kernels
