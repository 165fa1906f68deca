#pragma once
/// Attention on a GPU by the kernel that LibTorch brings, FlashAttention 2; and in a plan for one.

#include "core/attention/flash_calls.hpp"
#include "megahost/export.hpp"
#include "megahost/nn/attention_kernel.hpp"

#include <optional>
#include <tuple>
#include <vector>

namespace mh::ops {

/// The kernel's calls; nothing, and one warning that says why, where it cannot do what is asked.
[[nodiscard]] std::optional<std::vector<FlashCall>> gpu_calls(
    const at::Tensor& q, const at::Tensor& k, const KernelMask& mask, const KernelDropout& dropout
);

/// `attention` by those calls.
[[nodiscard]] MH_API std::tuple<at::Tensor, at::Tensor> attention_gpu(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    double scale,
    const std::vector<FlashCall>& calls,
    const KernelMask& mask,
    const KernelDropout& dropout
);

/// `attention_backward` by those calls: the gradients of q, k and v.
[[nodiscard]] MH_API std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_gpu_backward(
    const at::Tensor& dout,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& out,
    const at::Tensor& lse,
    double scale,
    const std::vector<FlashCall>& calls,
    const KernelMask& mask,
    const KernelDropout& dropout
);

} // namespace mh::ops
