#pragma once
/// Memory that operators take on the CPU while they run: packed operands, a part for each thread,
/// operands in another type.

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string_view>

namespace mh::ops {

/// Bytes of a call of "megahost::NAME", from its arguments in the order of the operator's schema;
/// 0 for operators that take next to nothing.
[[nodiscard]] int64_t
cpu_workspace(std::string_view name, c10::ArrayRef<const c10::IValue> arguments);

/// Bytes of attention's workspace, and of its backward pass's.
[[nodiscard]] int64_t attention_workspace(
    const at::Tensor& q,
    const at::Tensor& k,
    double dropout,
    const std::optional<at::Tensor>& bias,
    double cap,
    bool backward
);

} // namespace mh::ops
