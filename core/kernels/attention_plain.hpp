#pragma once
/// Attention as a composition of plain operations: on devices without a kernel of ours, in float64,
/// and as the oracle of the kernels' tests. Queries are taken in parts, one after another, so that
/// memory grows with the keys and not with all scores.

#include "megahost/nn/attention_kernel.hpp"

namespace mh::ops {

/// How many queries a part has: scores of at most 2^24 elements, or those of one query.
[[nodiscard]] int64_t plain_queries(const at::Tensor& q, const at::Tensor& k);

[[nodiscard]] std::tuple<at::Tensor, at::Tensor> attention_plain(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    double scale,
    const KernelMask& mask,
    const KernelDropout& dropout = {}
);

[[nodiscard]] std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> attention_plain_backward(
    const at::Tensor& dout,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& out,
    const at::Tensor& lse,
    double scale,
    const KernelMask& mask,
    const KernelDropout& dropout = {}
);

} // namespace mh::ops
