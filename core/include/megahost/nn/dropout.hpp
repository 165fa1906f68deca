#pragma once
/// Dropout whose masks depend on (seed, site, sample, token, feature) only: equal under every
/// layout, and needing no generator state in recompute.

#include "megahost/context.hpp"
#include "megahost/export.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace mh {

/// Zeroes elements with probability p and scales the others by 1/(1-p); x itself outside training.
///
/// `site` tells this use of dropout from others (`random_key(0, name)`); `last` is what x's last
/// dimension means, from which follows which slice of the features and tokens this rank holds.
///
/// Shapes:  x [seq, batch, last] -> the same
[[nodiscard]] MH_API at::Tensor
dropout(const at::Tensor& x, Axis last, double p, uint64_t site, StepContext& context);

/// Dropout of a slice that the caller knows: `tokens` [seq] are the tokens' numbers in their
/// samples, `first_feature` is the global number of x's first feature.
[[nodiscard]] MH_API at::Tensor dropout_at(
    const at::Tensor& x,
    double p,
    uint64_t site,
    int64_t first_feature,
    const at::Tensor& tokens,
    StepContext& context
);

} // namespace mh
