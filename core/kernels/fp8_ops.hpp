#pragma once
/// Products in FP8 as a GPU's tensor cores make them, in other arithmetic: operands rounded to E4M3
/// or E5M2 after scaling, sums in float32, the result scaled back.

#include <ATen/core/Tensor.h>

namespace mh::ops {

/// The largest finite value of E4M3 (448) or E5M2 (57344).
[[nodiscard]] double fp8_max(bool e5m2);

/// The largest magnitude: a float32 scalar. NaN if there is one.
[[nodiscard]] at::Tensor fp8_largest(const at::Tensor& x);

/// x * scale in FP8: rounded to nearest, ties to even; what is too large becomes the largest finite
/// value, NaN stays.
///
/// Shapes:  x [...] any float; scale float32 scalar -> Float8_e4m3fn, or Float8_e5m2 if `e5m2`
/// Source:  arXiv:2209.05433
[[nodiscard]] at::Tensor fp8_round(const at::Tensor& x, const at::Tensor& scale, bool e5m2);

/// (a b) * inverse, summed in float32.
///
/// Shapes:  a [m, k], b [k, n] FP8 of either kind; inverse float32 scalar -> float32 [m, n]
[[nodiscard]] at::Tensor
fp8_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& inverse);

} // namespace mh::ops
