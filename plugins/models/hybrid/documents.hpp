#pragma once
/// The tokens that belong together in packed samples.

#include <megahost/context.hpp>
#include <megahost/nn/tokens_before.hpp>
#include <megahost/placement.hpp>

#include <ATen/core/Tensor.h>

#include <vector>

namespace mh::hybrid {

/// How many documents have begun in whole samples, up to each token: [seq, batch], the same on all
/// ranks; undefined where samples are one document each. `all` is of the layer that asks.
[[nodiscard]] at::Tensor documents_begun(const AllTokens& all, StepContext& context);

/// Tokens of this rank with which a document begins, but for a sample's first: bool [seq, batch];
/// undefined where `documents`, as documents_begun gives them, are.
[[nodiscard]] at::Tensor starts_of(const at::Tensor& documents, const std::vector<TokenRun>& runs);

} // namespace mh::hybrid
