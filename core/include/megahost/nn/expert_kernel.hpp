#pragma once
/// The operators of expert layers: which slot each token gets at an expert, rows to slots and back,
/// GEMMs with one matrix per expert. Experts and token dispatchers are made of them.
///
/// ```cpp
/// const auto [slots, ends] = mh::ops::expert_slots(choices, 0, experts, 0);
/// auto rows = mh::ops::to_slots(x, slots, count);              // sorted by expert
/// auto y = mh::ops::from_slots(rows.relu(), slots, weights);   // back, weighted sums
/// ```

#include "megahost/export.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

namespace mh::ops {

/// Slots of the choices of experts `first` .. first + experts - 1: sorted by expert, then by token.
///
/// Returns: slots like choices, -1 where the choice is another expert's or none (-1); and where
///          each expert's slots begin, [experts + 1] int64. `pad` > 0: each expert has so many,
///          however many chose it
/// Shapes:  choices [tokens, k] int64
[[nodiscard]] MH_API std::tuple<at::Tensor, at::Tensor>
expert_slots(const at::Tensor& choices, int64_t first, int64_t experts, int64_t pad);

/// Copies each token's row to its slots; slots without a token are 0. Differentiable in x.
///
/// Shapes:  x [tokens, n]; slots [tokens, k] int64 -> [count, n]
[[nodiscard]] MH_API at::Tensor
to_slots(const at::Tensor& x, const at::Tensor& slots, int64_t count);

/// Each token's weighted sum over its slots. Differentiable in y and weights.
///
/// Shapes:  y [count, n]; slots [tokens, k] int64; weights [tokens, k] float32 (float64 for
///          float64), undefined: 1 -> [tokens, n]
[[nodiscard]] MH_API at::Tensor
from_slots(const at::Tensor& y, const at::Tensor& slots, const at::Tensor& weights);

/// Rows ends[e] .. ends[e + 1] - 1 times expert e's matrix: x wᵀ, or x w if not `transposed`. Rows
/// behind the last end mean nothing. In bfloat16 on a GPU the host does not wait for the ends.
///
/// Shapes:  x [rows, k]; w [experts, n, k] ([experts, k, n] if not transposed); ends [experts + 1]
///          int64 on x's device -> [rows, n]
[[nodiscard]] MH_API at::Tensor
grouped_product(const at::Tensor& x, const at::Tensor& w, const at::Tensor& ends, bool transposed);

/// sum[e] += dyᵀ x over the rows of expert e. On a GPU each GEMM is rounded to x's type first.
///
/// Shapes:  sum [experts, n, k] float32 (float64 for float64); dy [rows, n]; x [rows, k]; ends as
///          above
MH_API void grouped_gradient_(
    at::Tensor sum, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& ends
);

} // namespace mh::ops
