#pragma once
/// Runs a recipe's training steps on a device that takes programs.

#include "core/program/step_program.hpp"
#include "core/train/device_step.hpp"
#include "megahost/device.hpp"
#include "megahost/export.hpp"
#include "megahost/host.hpp"
#include "megahost/recipe.hpp"

#include <cstdint>
#include <functional>
#include <memory>

namespace mh::program {

/// The recipe's device, opened, if the recipe's ranks are the devices of one process: it runs
/// programs, and has that many of them. Else null.
///
/// Throws:  mh::Error if it has fewer
[[nodiscard]] MH_API std::unique_ptr<Device> device_of_ranks(const Recipe& recipe, Host& host);

/// The recipe of the process that drives the devices: one rank, which holds whole tensors, evaluates
/// and writes checkpoints.
[[nodiscard]] MH_API Recipe one_rank(Recipe recipe);

/// Compiles the programs of all batch sizes of a run on the recipe's device, the smallest first.
/// `compiled` hears of each: its microbatches per rank and seconds of compiling.
///
/// Throws:  mh::Error if the device runs no programs, or what its compiler says
MH_API void compile_steps(
    const Recipe& recipe,
    Host& host,
    const StepProgramOptions& options,
    const std::function<void(int64_t microbatches, double seconds)>& compiled
);

/// The steps of a session whose device is a ProgramDevice, on as many devices as `recipe` has ranks;
/// null if it is another. Session and weights, those of `one_rank(recipe)`, outlive it.
///
/// Throws:  mh::Error where the recipe asks for what programs cannot do
[[nodiscard]] MH_API std::unique_ptr<DeviceStep>
device_step(const Recipe& recipe, Session& session, Weights& weights, Host& host);

} // namespace mh::program
