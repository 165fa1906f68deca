#pragma once
/// Operators over rows: norms, rotary embedding, gated activations, the vocabulary's softmax, sums
/// of rows. On the CPU each is one pass in float32 and bfloat16, statistics in float32; in other
/// types and on other devices a composition of plain operations.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <tuple>

namespace mh::ops {

/// x [..., n] -> [rows, n].
[[nodiscard]] at::Tensor rows_of(const at::Tensor& x);

struct NormResult {
  at::Tensor y, sum; ///< sum: x + added, or x itself
  at::Tensor mean, rstd;
};

/// (sum - mean) rstd weight + bias over the last dimension, or sum rstd weight if not `centred`, of
/// sum = x + added.
///
/// Shapes:  x, added [..., n]; weight, bias [n]; added and bias perhaps undefined
///          -> y like x; mean (empty if not centred) and rstd: float32 [rows] (float64 for float64)
[[nodiscard]] NormResult norm(
    const at::Tensor& x,
    const at::Tensor& added,
    const at::Tensor& weight,
    const at::Tensor& bias,
    double eps,
    bool centred
);

/// The gradient of `sum` from y's, plus `dsum` if that is defined. The gradients of weight and bias
/// are added to `dweight` and `dbias` if these are defined, which have rstd's type.
[[nodiscard]] at::Tensor norm_backward(
    const at::Tensor& dy,
    const at::Tensor& sum,
    const at::Tensor& weight,
    const at::Tensor& mean,
    const at::Tensor& rstd,
    const at::Tensor& dsum,
    bool centred,
    const at::Tensor& dweight,
    const at::Tensor& dbias
);

/// The heads of all parts one behind the other; of the first `rotated` parts the first
/// 2 * table.size(-1) elements of each head are rotated, backwards if `inverse`.
///
/// Shapes:  parts [seq, batch, heads, dim]; table [2, seq, 1 or batch, 1, half]
///          -> [seq, batch, sum of heads, dim], contiguous
[[nodiscard]] at::Tensor
rotary(at::TensorList parts, const at::Tensor& table, int64_t rotated, bool inverse);

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
