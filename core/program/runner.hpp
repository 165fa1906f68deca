#pragma once
/// Runs a recipe's training steps on a device that takes programs.

#include "core/train/device_step.hpp"
#include "megahost/export.hpp"

#include <memory>

namespace mh::program {

/// The steps of a session whose device is a ProgramDevice; null if it is another. Session and weights
/// outlive it.
///
/// Throws:  mh::Error where the recipe asks for what programs cannot do
[[nodiscard]] MH_API std::unique_ptr<DeviceStep>
device_step(Session& session, Weights& weights, Host& host);

} // namespace mh::program
