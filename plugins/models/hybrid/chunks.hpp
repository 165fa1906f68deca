#pragma once
/// Chunks of a sequence's tokens, within which a layer with a state computes with matrices.

#include <megahost/placement.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace mh::hybrid {

/// The rows of chunks of at most `size` tokens; each of the runs begins with a chunk.
[[nodiscard]] std::vector<TokenRun> chunk_rows(const std::vector<TokenRun>& runs, int64_t size);

/// Chunks that follow each other without a gap, all with the same number of rows: they are copied,
/// or computed, at once.
struct AlikeChunks {
  int64_t first, count; ///< chunks
  TokenRun rows;        ///< the first one's

  /// Their rows of a tensor.
  ///
  /// Shapes:  [seq, ...] -> [count, rows, ...], no copy
  [[nodiscard]] at::Tensor rows_of(const at::Tensor& all) const;
};

/// All chunks, in as few groups as there can be.
///
/// Args:    most_pairs: the most pairs of tokens of one chunk that a group of several chunks has
[[nodiscard]] std::vector<AlikeChunks> alike(
    const std::vector<TokenRun>& chunks, int64_t most_pairs = std::numeric_limits<int64_t>::max()
);

} // namespace mh::hybrid
