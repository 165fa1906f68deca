#pragma once
/// One training step: microbatches through the model as the schedule's instructions say, gradients
/// as plain sums, one update.

#include "core/step/executor.hpp"
#include "core/step/weights.hpp"
#include "megahost/context.hpp"
#include "megahost/export.hpp"
#include "megahost/mesh.hpp"
#include "megahost/model.hpp"
#include "megahost/optimizer.hpp"
#include "megahost/pipeline_schedule.hpp"
#include "megahost/placement.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace mh {

/// Forward and backward passes as the run's schedule orders them; see `execute`.
[[nodiscard]] std::vector<LossValue> forward_backward(
    const Passes& passes,
    std::span<const Batch> microbatches,
    uint64_t seed,
    bool dropout = true,
    double loss_scale = 1
);

/// The instructions of this rank's stage in a step of training: the list of the run's schedule, or
/// forward and backward of each microbatch in turn.
[[nodiscard]] std::vector<Instruction>
training_instructions(const Passes& passes, std::span<const Batch> microbatches);

/// Forward passes only, without dropout.
[[nodiscard]] std::vector<LossValue>
forward_only(const Passes& passes, std::span<const Batch> microbatches);

/// The factor that brings gradients of this norm down to `clip`: clip / (norm + 1e-6) if below 1,
/// else 1. A clip of 0 does not clip.
[[nodiscard]] double clip_factor(double norm, double clip);

struct StepResult {
  std::vector<LossValue> losses;
  std::vector<MetricValue> metrics{};
  double gradient_norm = 0;             ///< before clipping, without the loss scale
  std::optional<double> num_zeros{};    ///< among the gradients, if they were counted
  bool updated = false;                 ///< if not, no weight was touched
  std::vector<at::Tensor> own_losses{}; ///< this rank's shares of them, on the device

  [[nodiscard]] bool finite() const;
};

struct StepOptions {
  uint64_t seed = 0; ///< seed of dropout
  double clip = 0;   ///< largest norm of the gradients; 0 does not clip
  Update update{};
  double loss_scale = 1; ///< factor of the loss in the backward pass only
  bool count_zeros = false;
  /// Whether the update may happen, the same on all ranks; absent: if all is finite.
  std::function<bool(const StepResult&)> accept{};
};

/// A whole step: gradients (zero before and after it, in `passes.gradients`), their sums over
/// ranks, norm, clipping, update number `update.step`.
[[nodiscard]] MH_API StepResult train_step(
    const Passes& passes,
    Weights& weights,
    const Optimizer& optimizer,
    std::span<const Batch> microbatches,
    const StepOptions& options
);

} // namespace mh
