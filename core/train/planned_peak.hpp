#pragma once
/// What a step will take, counted on the Meta device by running one microbatch of it.

#include "core/train/weights.hpp"
#include "megahost/architecture.hpp"
#include "megahost/builder.hpp"
#include "megahost/context.hpp"
#include "megahost/optimizer.hpp"
#include "megahost/recompute.hpp"

#include <cstdint>
#include <vector>

namespace mh {

/// Bytes of this rank's tensors at the peak of a step whose block i keeps `keep[i]`: weights,
/// gradients, masters, optimizer state and activations, with the kernels of device `target`.
/// Workspace inside kernels is not in it.
///
/// Ranks:   local: collectives are not run
[[nodiscard]] int64_t planned_peak(
    const Architecture& architecture,
    const Builder::Args& args,
    at::DeviceType target,
    const Optimizer& optimizer,
    const WeightOptions& options,
    const Batch& microbatch,
    const std::vector<Keep>& keep
);

} // namespace mh
