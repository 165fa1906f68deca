#pragma once
/// The same bits each time: what --deterministic asks of LibTorch.

#include "megahost/device.hpp"

#include <functional>
#include <string>

namespace mh {

/// From now on LibTorch takes deterministic algorithms only (`on`), or any.
///
/// Returns: what that means for a run on this device, as a line of the log; empty if not `on`
std::string set_deterministic(bool on, const Device& device);

/// Runs an action; that an operation has no deterministic form becomes a sentence.
///
/// Throws:  mh::Error naming the operation, and whatever else the action throws
void without_nondeterminism(const std::function<void()>& action);

} // namespace mh
