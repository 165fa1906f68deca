#pragma once
/// The code that the operators over rows share.

#include "core/cuda/library.hpp"
#include "core/kernels/level.hpp"
#include "megahost/parallel.hpp"

#include <ATen/core/Tensor.h>

namespace mh::ops {

inline at::ScalarType statistics_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// The CPU's kernels for tensors of x's type, or nullptr.
inline const kernels::RowKernels* row_kernels(const at::Tensor& x) {
  if (x.numel() == 0) {
    return nullptr;
  }
  if (x.scalar_type() == at::kFloat) {
    return &kernels::table().rows_fp32;
  }
  return x.scalar_type() == at::kBFloat16 ? &kernels::table().rows_bf16 : nullptr;
}

/// A GPU's kernels for tensors of x's type, or nullptr.
inline const cuda::LaunchTable* cuda_row_kernels(const at::Tensor& x) {
  const auto type = x.scalar_type();
  return x.numel() > 0 && (type == at::kFloat || type == at::kBFloat16) ? cuda_kernels() : nullptr;
}

/// The kernels' name of x's type.
inline cuda::GpuType cuda_type(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat ? cuda::GpuType::fp32 : cuda::GpuType::bf16;
}

/// Shares rows among threads, none fewer than make some thousand elements.
template <class Run>
void over_rows(int64_t rows, int64_t elements, const Run& run) {
  parallel_for(0, rows, std::max<int64_t>(1, 8192 / std::max<int64_t>(elements, 1)), run);
}

} // namespace mh::ops
