#pragma once
/// What two boxes of a global tensor share.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace mh {

struct Box {
  std::vector<int64_t> offset, shape;
};

/// Nothing if they share no element.
[[nodiscard]] inline std::optional<Box> overlap_of(const Box& a, const Box& b) {
  Box shared;
  for (size_t d = 0; d < a.offset.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.shape[d], b.offset[d] + b.shape[d]);
    if (begin >= end) {
      return std::nullopt;
    }
    shared.offset.push_back(begin);
    shared.shape.push_back(end - begin);
  }
  return shared;
}

/// The box of the global tensor in a tensor that begins at `origin` of it.
[[nodiscard]] inline at::Tensor
cut_box(at::Tensor value, const std::vector<int64_t>& origin, const Box& box) {
  for (size_t d = 0; d < origin.size(); ++d) {
    value = value.narrow(static_cast<int64_t>(d), box.offset[d] - origin[d], box.shape[d]);
  }
  return value;
}

} // namespace mh
