#pragma once
/// The memory and time that a run would take: memory of each pipeline stage and the time of a step,
/// from the recorded step and a machine.

#include "core/plan/compose.hpp"
#include "core/plan/stage_clock.hpp"
#include "core/plan/stage_record.hpp"
#include "core/step/pipeline_lists.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace mh {

struct StagePlan {
  int64_t stage = 0;
  std::string layers; ///< "embed+10"
  /// Bytes; `reserved` are those of no tensor.
  int64_t parameters = 0, gradients = 0, state = 0, activations = 0, workspace = 0, reserved = 0;
  bool own_masters = true; ///< parameters are their own masters, else those are in `state`
  double busy = 0;         ///< seconds of a step with work

  /// Bytes of tensors.
  [[nodiscard]] int64_t tensors() const {
    return parameters + gradients + state + activations + workspace;
  }

  [[nodiscard]] int64_t total() const { return tensors() + reserved; }
};

/// Seconds of a step on the stage with the most work; they add up to the step.
struct StepTime {
  double products = 0, attention = 0, memory = 0;
  std::map<std::string, double> exposed; ///< waiting for others, by mesh axis
  double bubble = 0;
  double optimizer = 0;
  double total = 0;
};

enum class Fit : uint8_t { unknown, fits, tight, too_much };

/// How so many bytes lie in a memory: tight above 95% of it. A capacity of 0 is unknown.
[[nodiscard]] MH_API Fit fit_of(int64_t bytes, int64_t capacity);

struct MH_API Plan {
  MeshShape shape;
  Machine machine;
  bool host = false; ///< tensors lie in the host's memory
  PipelineSchedule::Args pipeline;
  std::string precision;
  std::vector<StagePlan> stages;
  StepTime step;
  Timeline timeline;
  int64_t capacity = 0; ///< bytes of a rank's memory; 0: unknown
  int64_t parameters = 0;
  double tokens = 0;         ///< tokens of a step, all ranks together
  double model_flops = 0;    ///< FLOPs of a step, recomputation not counted
  double executed_flops = 0; ///< FLOPs of a step, as recorded
  double peak_flops = 0;     ///< peak FLOP/s of a rank
  bool recomputed = false;   ///< every block runs again in the backward pass
  std::vector<std::string> notes;

  [[nodiscard]] int64_t most() const; ///< bytes of the stage that takes most

  [[nodiscard]] Fit fit() const { return fit_of(most(), capacity); }

  [[nodiscard]] bool fits() const { return fit() != Fit::too_much; }

  [[nodiscard]] double tokens_per_second() const { return tokens / step.total; }

  /// Shares of the peak of all ranks: by model FLOPs, by executed FLOPs.
  [[nodiscard]] double mfu() const { return model_flops / available(); }

  [[nodiscard]] double hfu() const { return executed_flops / available(); }

  /// FLOPs that all ranks could do in a step.
  [[nodiscard]] double available() const {
    return step.total * peak_flops * static_cast<double>(shape.world());
  }
};

/// FLOPs of a step of a GPT as its scaling studies count them: all pairs of attention, and blocks
/// that are recomputed.
///
/// Source:  arXiv:2104.04473, equation 3; Megatron Core 0.8, num_floating_point_operations
[[nodiscard]] MH_API double papers_flops(const Recipe& recipe, const Plan& plan);

/// A plan from a record; the same record can be planned on several machines.
[[nodiscard]] MH_API Plan
make_plan(const RecordedStep& step, const Recipe& recipe, const Machine& machine);

/// The same, with stages by the clock that were put together in another way; one for each record.
[[nodiscard]] Plan make_plan(
    const RecordedStep& step,
    const std::vector<TimedStage>& stages,
    const Recipe& recipe,
    const Machine& machine
);

/// Whether ranks of tp send a part each to the next stage.
[[nodiscard]] bool scattered(const Recipe& recipe, const Machine& machine);

} // namespace mh
