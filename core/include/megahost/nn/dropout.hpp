#pragma once
/// Dropout whose masks depend on (seed, site, sample, token, feature) only: equal under every layout, and
/// needing no generator state in recompute.

#include "megahost/context.hpp"
#include "megahost/export.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace mh {

/// Zeroes elements with probability p and scales the others by 1/(1-p); x itself outside training.
///
/// `site` tells this use of dropout from others (`random_key(0, name)`); `first_feature` is the global
/// index of x's first feature where features are split.
///
/// Shapes:  x [seq, batch, features] -> the same
[[nodiscard]] MH_API at::Tensor dropout(const at::Tensor& x, double p, uint64_t site,
                                        int64_t first_feature, StepContext& context);

}  // namespace mh
