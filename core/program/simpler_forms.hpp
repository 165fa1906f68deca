#pragma once
/// Operators of LibTorch as compositions of fewer others: what a lowering need not know.

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <string>

namespace mh::program {

/// Takes an operator's arguments from a stack, and puts its results there.
using SimplerForm = void (*)(torch::jit::Stack& stack);

/// The simpler form of "aten::gelu"; null if there is none.
[[nodiscard]] SimplerForm simpler_form(const std::string& op);

} // namespace mh::program
