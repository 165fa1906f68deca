#pragma once
/// Operators over rows: norms, rotary embedding, gated activations, the vocabulary's soft max, sums
/// of rows. On the CPU each is one pass in float32 and bfloat16, statistics in float32; in other
/// types and on other devices a composition of plain operations.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <tuple>

namespace mh::ops {

/// x [..., n] -> [rows, n].
[[nodiscard]] at::Tensor rows_of(const at::Tensor& x);

/// (x - mean) rstd weight + bias over the last dimension, or x rstd weight if not `centred`.
///
/// Shapes:  x [..., n]; weight, bias [n], bias perhaps undefined
///          -> y like x; mean (empty if not centred) and rstd: float32 [rows] (float64 for float64)
[[nodiscard]] std::tuple<at::Tensor, at::Tensor, at::Tensor> norm(
    const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps, bool centred
);

/// -> the gradients of x, weight and bias (empty if not centred), the last two in rstd's type.
[[nodiscard]] std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_backward(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& mean,
    const at::Tensor& rstd,
    bool centred
);

/// Rotates the first 2 * table.size(-1) elements of each head, backwards if `inverse`.
///
/// Shapes:  x [seq, batch, heads, dim]; table [2, seq, 1 or batch, 1, half] -> x's, contiguous
[[nodiscard]] at::Tensor rotary(const at::Tensor& x, const at::Tensor& table, bool inverse);

/// act(x), or act(gate) * up of packed halves if `gated`; `kind` is "silu", "gelu" (erf) or
/// "gelu_tanh".
///
/// Shapes:  x [..., n], or [..., 2 n] if gated -> [..., n]
[[nodiscard]] at::Tensor activation(const at::Tensor& x, const std::string& kind, bool gated);
[[nodiscard]] at::Tensor
activation_backward(const at::Tensor& dy, const at::Tensor& x, const std::string& kind, bool gated);

/// Each row's maximum, sum of exp(z - maximum), and label's logit (0 where
/// the label is not among the `entries` from `first` on). Columns beyond `entries` are padding.
///
/// Shapes:  z [n, columns] contiguous; labels [n] int64 -> [3, n] float32 (float64 for float64)
[[nodiscard]] at::Tensor
vocab_statistics(const at::Tensor& z, const at::Tensor& labels, int64_t first, int64_t entries);

/// z = (exp(z - lse) - [column is the label]) scale, 0 in the padding.
///
/// Shapes:  lse, scale [n] in the type of the statistics
void vocab_gradient_(
    at::Tensor z,
    const at::Tensor& labels,
    const at::Tensor& lse,
    const at::Tensor& scale,
    int64_t first,
    int64_t entries
);

/// out += the sum of x's rows.
///
/// Shapes:  out [n] float32 (float64 for float64); x [rows, n]
void add_row_sums_(at::Tensor out, const at::Tensor& x);

} // namespace mh::ops
