#pragma once
/// The checking mode: at the boundaries of layers, ranks compare what they should agree on, and the
/// first that differs is named. It finds what no shape check does: a collective that is missing, or
/// one too many, whose only trace is a wrong gradient on some ranks.
///
/// ```cpp
/// x = mh::checked(x, context.place(embed), "layers.3.mixer", "input", context);
/// ```
///
/// `megahost check` and `megahost run --checking` turn it on (StepMode::checking); off, it costs
/// one test of a flag.

#include "megahost/context.hpp"
#include "megahost/export.hpp"
#include "megahost/parameter.hpp"
#include "megahost/placement.hpp"

#include <ATen/core/Tensor.h>

#include <string_view>

namespace mh {

/// `x` itself. In the checking mode its values are compared over each mesh axis on which it is
/// identical or replicated, and in the backward pass its gradient over those on which it is
/// identical.
///
/// Throws:  mh::Error naming layer, tensor and mesh axis, on every rank of the group that differs
[[nodiscard]] MH_API at::Tensor checked(
    const at::Tensor& x,
    const Placement& placed,
    std::string_view layer,
    std::string_view tensor,
    const StepContext& context
);

/// Compares the reduced gradients, and the values, of parameters over the ranks that hold the same
/// slice.
///
/// Throws:  mh::Error naming parameter and mesh axis, on every rank of the group that differs
/// Ranks:   collective over all; after Gradients::finish
MH_API void check_parameters(const ParameterStore& parameters, const Mesh& mesh);

} // namespace mh
