#pragma once
/// Boxes of a global tensor.

#include <ATen/core/Tensor.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace mh {

/// A box of a tensor, by its first index along each dimension.
struct Box {
  std::vector<int64_t> offset, shape;

  [[nodiscard]] int64_t elements() const { return c10::multiply_integers(shape); }

  /// The intersection with another box; no elements if there is none.
  [[nodiscard]] Box common(const Box& other) const {
    Box both = other;
    for (size_t d = 0; d < offset.size(); ++d) {
      const int64_t end = std::min(offset[d] + shape[d], other.offset[d] + other.shape[d]);
      both.offset[d] = std::max(offset[d], other.offset[d]);
      both.shape[d] = std::max<int64_t>(0, end - both.offset[d]);
    }
    return both;
  }

  /// The part of a tensor with this box that has another one.
  [[nodiscard]] at::Tensor cut(at::Tensor value, const Box& part) const {
    for (size_t d = 0; d < offset.size(); ++d) {
      const int64_t begin = part.shape[d] == 0 ? 0 : part.offset[d] - offset[d];
      value = value.narrow(static_cast<int64_t>(d), begin, part.shape[d]);
    }
    return value;
  }
};

} // namespace mh
