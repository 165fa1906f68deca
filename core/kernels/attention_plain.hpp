#pragma once
/// Attention as a composition of plain operations: on devices without a kernel of ours, in float64,
/// and as the oracle of the kernels' tests. Makes the scores in full.

#include "megahost/nn/attention_kernel.hpp"

namespace mh::ops {

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
