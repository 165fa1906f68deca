#pragma once
/// The inputs of dropout's masks, in addition to tokens and features.

#include "megahost/context.hpp"

namespace mh {

/// The key of a site's masks in this step.
[[nodiscard]] int64_t dropout_key(uint64_t site, const StepContext& context);

/// Global numbers of the microbatch's samples, [batch] int64 on the device.
[[nodiscard]] at::Tensor sample_numbers(StepContext& context, at::Device device);

} // namespace mh
