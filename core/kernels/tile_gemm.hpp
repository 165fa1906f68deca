#pragma once
/// bf16 GEMMs in the tile registers of a CPU that has them (level "amx").

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace mh::ops {

/// Whether a b of operands of `type`, with sums or a result of type `sums`, is made by `tile_gemm`:
/// on this CPU and at this level, of bf16, and where it is the faster or LibTorch's is wrong.
[[nodiscard]] bool
fits_tiles(const at::Tensor& a, const at::Tensor& b, at::ScalarType type, at::ScalarType sums);

/// c = a b, or c += a b where `add`, which needs a float32 c. Sums are float32, each in one order,
/// whatever the number of threads.
///
/// Shapes:  c [m, n] float32 or bfloat16, rows contiguous; a [m, k], b [k, n] bfloat16, each or its
///          transpose with contiguous rows
void tile_gemm(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool add);

/// Bytes that it takes while it runs.
[[nodiscard]] int64_t
tile_gemm_workspace(at::ScalarType sums, const at::Tensor& a, const at::Tensor& b);

} // namespace mh::ops
