#pragma once
/// The attention operators as one differentiable function.

#include "core/kernels/attention.hpp"

namespace mh {

/// `ops::attention`'s output; saves q, k, v, the output and one number per query.
[[nodiscard]] at::Tensor flash_attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    double scale,
    const ops::AttentionMask& mask,
    const ops::AttentionDropout& dropout = {}
);

} // namespace mh
