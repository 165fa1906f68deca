#pragma once
/// A GEMM that accumulates in float32: `megahost::gemm_`.

#include <ATen/core/Tensor.h>

namespace mh::ops {

/// c = a b, or c += a b where `add`; sums are float32, whatever a and b are.
///
/// It does what LibTorch's GEMMs do not do on the CPU: bf16 operands summed straight into a float32
/// result (weight gradients), float32 at the full width of AVX512 on every vendor's CPU, and bf16
/// in tile registers near their peak. Each element is summed in one order, whatever the number of
/// threads; float32 GEMMs that `gemm_choice` gives to LibTorch are summed in its library's order.
///
/// Shapes:  c [m, n] float32 (float64 for float64; unless `add` a's type, too), rows contiguous;
///          a [m, k], b [k, n], both of one type, each or its transpose with contiguous rows
void gemm_(at::Tensor c, const at::Tensor& a, const at::Tensor& b, bool add);

/// Bytes that it takes on the CPU while it runs, with a c of type `sums`; a and b, of which only
/// shapes and strides are read, count as of type `type`.
[[nodiscard]] int64_t gemm_workspace(
    at::ScalarType sums, const at::Tensor& a, const at::Tensor& b, at::ScalarType type, bool add
);

/// Whether GEMMs with such a left operand are LibTorch's: not of float32 on the CPU, and of bf16
/// only where the CPU has instructions for it. LibTorch multiplies number by number elsewhere.
[[nodiscard]] bool libtorch_multiplies(const at::Tensor& a);

/// Whether `product(a, b)` is LibTorch's.
[[nodiscard]] bool libtorch_multiplies(const at::Tensor& a, const at::Tensor& b);

/// a b in the operands' type, rounded once, by the faster of `gemm_` and LibTorch's GEMM.
[[nodiscard]] at::Tensor product(const at::Tensor& a, const at::Tensor& b);

} // namespace mh::ops
