#include "core/attention/mask.hpp"

#include "megahost/nn/attention_kernel.hpp"

#include <algorithm>

namespace mh::kernels {

namespace {

int64_t tiles(int64_t length) {
  return (length + kTile - 1) / kTile;
}

struct IdRange {
  int32_t low, high;
};

IdRange range(const std::vector<int32_t>& values, int64_t tile) {
  const auto begin = values.begin() + tile * kTile;
  const auto [low, high] = std::minmax_element(begin, begin + kTile);
  return {*low, *high};
}

} // namespace

Mask::Mask(const MaskSpec& spec)
    : batch_(spec.batch)
    , query_tiles_(tiles(spec.queries))
    , key_tiles_(tiles(spec.keys)) {
  const auto queries = static_cast<size_t>(batch_ * query_tiles_ * kTile);
  const auto keys = static_cast<size_t>(batch_ * key_tiles_ * kTile);
  token_.assign(queries, 0);
  low_.assign(queries, 0);
  high_.assign(queries, 0);
  query_segment_.assign(queries, kNoQuery);
  position_.assign(keys, 0);
  key_segment_.assign(keys, kNoKey);
  cover_.resize(static_cast<size_t>(batch_ * query_tiles_ * key_tiles_));
  for (int64_t b = 0; b < batch_; ++b) {
    for (int64_t i = 0; i < spec.queries; ++i) {
      const auto at = static_cast<size_t>(b * query_tiles_ * kTile + i);
      const int64_t index =
          spec.query_index == nullptr ? spec.keys - spec.queries + i : spec.query_index[i];
      token_[at] = static_cast<int32_t>(index);
      const bool bounded = spec.window > 0;
      low_[at] = bounded ? static_cast<int32_t>(index - spec.window + 1) : INT32_MIN;
      high_[at] = spec.causal ? static_cast<int32_t>(index)
                  : bounded   ? static_cast<int32_t>(index + spec.window - 1)
                              : INT32_MAX;
      query_segment_[at] = spec.query_segments == nullptr
                               ? 0
                               : static_cast<int32_t>(spec.query_segments[i * batch_ + b]);
    }
    for (int64_t j = 0; j < spec.keys; ++j) {
      const auto at = static_cast<size_t>(b * key_tiles_ * kTile + j);
      position_[at] = static_cast<int32_t>(spec.key_index == nullptr ? j : spec.key_index[j]);
      key_segment_[at] = spec.key_segments == nullptr
                             ? 0
                             : static_cast<int32_t>(spec.key_segments[j * batch_ + b]);
    }
    cover_tiles(b);
  }
}

void Mask::cover_tiles(int64_t b) {
  std::vector<IdRange> positions;
  std::vector<IdRange> segments;
  for (int64_t k = 0; k < key_tiles_; ++k) {
    positions.push_back(range(position_, b * key_tiles_ + k));
    segments.push_back(range(key_segment_, b * key_tiles_ + k));
  }
  for (int64_t q = 0; q < query_tiles_; ++q) {
    const int64_t query_tile = b * query_tiles_ + q;
    const IdRange low = range(low_, query_tile);
    const IdRange high = range(high_, query_tile);
    const IdRange own = range(query_segment_, query_tile);
    for (int64_t k = 0; k < key_tiles_; ++k) {
      const IdRange position = positions[static_cast<size_t>(k)];
      const IdRange segment = segments[static_cast<size_t>(k)];
      Cover cover = some;
      if (position.low > high.high || position.high < low.low || segment.low > own.high ||
          segment.high < own.low) {
        cover = none;
      } else if (position.high <= high.low && position.low >= low.high && own.low == own.high && segment.low == own.low && segment.high == own.low) {
        cover = all;
      }
      cover_[static_cast<size_t>(query_tile * key_tiles_ + k)] = cover;
    }
  }
}

MaskView Mask::view() const {
  return {
      low_.data(),
      high_.data(),
      query_segment_.data(),
      position_.data(),
      key_segment_.data(),
      token_.data(),
      cover_.data()};
}

int64_t Mask::visible_tiles() const {
  return static_cast<int64_t>(cover_.size()) - std::count(cover_.begin(), cover_.end(), none);
}

} // namespace mh::kernels

namespace mh::ops {

double visible_pairs(int64_t queries, int64_t keys, bool causal, int64_t window) {
  const auto triangle = [&](int64_t last) { // sum of min(i, keys) for i from 1 to last
    const auto rows = static_cast<double>(std::max<int64_t>(last, 0));
    const double short_rows = std::min(rows, static_cast<double>(keys));
    return short_rows * (short_rows + 1) / 2 + (rows - short_rows) * static_cast<double>(keys);
  };
  const auto up_to = [&](int64_t ahead) { // keys at most so far after their query
    return triangle(keys + ahead) - triangle(keys - queries + ahead);
  };
  const double past = window > 0 ? up_to(-window) : 0;
  return (causal ? up_to(0) : up_to(window > 0 ? window - 1 : queries)) - past;
}

} // namespace mh::ops
