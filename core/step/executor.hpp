#pragma once
/// Runs a pipeline stage's instructions over the microbatches of a step: any schedule's, those of a
/// single stage too.

#include "core/step/losses.hpp"
#include "core/step/nan_watch.hpp"
#include "megahost/context.hpp"
#include "megahost/gradients.hpp"
#include "megahost/mesh.hpp"
#include "megahost/model.hpp"
#include "megahost/pipeline_schedule.hpp"
#include "megahost/placement.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace mh {

class Pipeline;

/// The state that all passes of a run share.
struct Passes {
  const Mesh& mesh;
  const Rules& rules;
  const Model& model;
  at::Device device;
  bool checking = false;              ///< see checking.hpp
  const Pipeline* pipeline = nullptr; ///< null: one stage
  Gradients* gradients = nullptr;     ///< null: who asked for the passes sums gradients itself
  NanWatch* watch = nullptr;          ///< is told which microbatch runs
  /// The device type that kernels are chosen for, if that is not `device`: on the Meta device.
  std::optional<at::DeviceType> target{};
  double imbalance = 1; ///< see StepMode
  /// Is told each instruction before it runs, and null after the last.
  std::function<void(const Instruction*)> before{};
};

struct ExecuteOptions {
  uint64_t seed = 0; ///< seed of dropout
  bool dropout = false;
  double loss_scale = 1; ///< factor of the loss in the backward passes only
  bool metrics = false;  ///< metrics that are vectors are computed, too
};

/// Runs the instructions of this stage. Main gradients grow by the gradients of the total loss, the
/// sum over losses of loss_scale * weight * sum / count; with gradients off, only forward passes
/// may be listed.
///
/// A receive is posted where it stands in the list and waited for by the pass that needs it. The
/// output of a pass lives until it was sent, its graph until its backward pass, its input until
/// then.
///
/// Returns: the losses' means over all microbatches, to be read by every rank
/// Throws:  mh::Error if the model adds no loss
/// Ranks:   all of the run, each with its own stage's list
[[nodiscard]] LossSums execute(
    const Passes& passes,
    std::span<const Batch> microbatches,
    std::span<const Instruction> instructions,
    const ExecuteOptions& options
);

} // namespace mh
