#pragma once
/// The tokens that belong together in packed samples.

#include <megahost/context.hpp>
#include <megahost/nn/tokens_before.hpp>

#include <ATen/core/Tensor.h>

namespace mh::hybrid {

/// How many documents have begun in whole samples, up to each token: [seq, batch], the same on all
/// ranks; undefined where samples are one document each. `all` is of the layer that asks.
[[nodiscard]] at::Tensor documents_begun(const AllTokens& all, StepContext& context);

} // namespace mh::hybrid
