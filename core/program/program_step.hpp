#pragma once
/// Steps of a run on a device that takes programs.

#include "core/program/step_program.hpp"
#include "core/train/device_step.hpp"
#include "megahost/program_device.hpp"
#include "megahost/recipe.hpp"

#include <memory>

namespace mh::program {

/// The steps of `recipe`, whose ranks are the devices. All references outlive it.
[[nodiscard]] std::unique_ptr<DeviceStep> program_step(
    const Recipe& recipe,
    Session& session,
    Weights& weights,
    Host& host,
    const ProgramDevice& device
);

} // namespace mh::program
