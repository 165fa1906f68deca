#pragma once
/// The keys that each query of attention sees, tile by tile.

#include "core/level/attention_call.hpp"

#include <cstdint>
#include <vector>

namespace mh::kernels {

/// The inputs of a mask. If indices are absent, keys count from 0 and the queries are the last of
/// them. A key is seen if it lies in the query's segment, is not after it (causal), and is fewer
/// than `window` positions away (0: any distance).
struct MaskSpec {
  int64_t queries, keys, batch;
  bool causal;
  int64_t window;
  const int64_t* query_index = nullptr;    ///< [queries]
  const int64_t* key_index = nullptr;      ///< [keys]
  const int64_t* query_segments = nullptr; ///< [queries, batch], contiguous
  const int64_t* key_segments = nullptr;   ///< [keys, batch], contiguous
};

class Mask {
public:
  explicit Mask(const MaskSpec& spec);

  [[nodiscard]] MaskView view() const;

  /// Tiles of all batches that are not hidden: what the kernels multiply.
  [[nodiscard]] int64_t visible_tiles() const;

private:
  void cover_tiles(int64_t b);

  int64_t batch_, query_tiles_, key_tiles_;
  std::vector<int32_t> token_, low_, high_, query_segment_, position_, key_segment_;
  std::vector<uint8_t> cover_;
};

} // namespace mh::kernels
