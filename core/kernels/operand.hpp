#pragma once
/// A matrix as GEMMs of our own read it.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

namespace mh::ops {

/// A matrix in memory: rows of `stride` elements, perhaps of its transpose.
struct Operand {
  explicit Operand(const at::Tensor& x)
      : transposed(x.stride(1) != 1)
      , kept(x.stride(0) == 1 || x.stride(1) == 1 ? x : x.contiguous()) {
    transposed = kept.stride(1) != 1;
    stride = std::max<int64_t>(kept.stride(transposed ? 1 : 0), 1);
  }

  /// Element (i, j).
  template <class T>
  [[nodiscard]] const T* at(int64_t i, int64_t j) const {
    const auto* data = static_cast<const T*>(kept.const_data_ptr());
    return data + (transposed ? j * stride + i : i * stride + j);
  }

  bool transposed;
  at::Tensor kept;
  int64_t stride = 1;
};

} // namespace mh::ops
