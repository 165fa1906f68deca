#pragma once
/// The step of one rank of a pipeline stage: recorded from the real step, run on the Meta device
/// with a few microbatches.
///
/// Every pass of a kind does the same, whatever the schedule: the first microbatch's, those in the
/// middle, the last one's (whose gradients are summed over ranks). So three microbatches say what
/// any number takes, in any order: see compose.hpp.

#include "core/plan/recorder.hpp"
#include "core/session/session.hpp"
#include "core/step/pipeline.hpp"
#include "core/step/stages.hpp"
#include "megahost/export.hpp"
#include "megahost/host.hpp"
#include "megahost/mesh.hpp"
#include "megahost/pipeline_schedule.hpp"
#include "megahost/recipe.hpp"

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace mh {

/// The record of one instruction.
struct PassRecord {
  int64_t net = 0;     ///< bytes that there are more after it than before
  int64_t peak = 0;    ///< and at most while it runs
  int64_t working = 0; ///< and with what a CPU's kernels take while they run
  int64_t sent = 0;    ///< bytes that a send's tensor holds until it is over; not in `net`
  double flops = 0;    ///< FLOPs of GEMMs and attention
  std::vector<PlanEvent> events;
};

/// Identifies a pass of a stage: its operation, its chunk, and the place of its microbatch in the
/// step.
struct PassKey {
  enum class Place : uint8_t { first, middle, last };

  Instruction::Op op;
  int32_t chunk;
  Place place;
  friend auto operator<=>(const PassKey&, const PassKey&) = default;

  static PassKey of(const Instruction& one, int64_t microbatches) {
    const Place place = one.microbatch == microbatches - 1 ? Place::last
                        : one.microbatch == 0              ? Place::first
                                                           : Place::middle;
    return {one.op, one.chunk, place};
  }
};

template <class Pass>
using ByPass = std::map<PassKey, Pass>;

/// The record of an instruction's kind; null: there is none.
template <class Pass>
const Pass* find_pass(const ByPass<Pass>& passes, PassKey key) {
  for (const auto place : {key.place, PassKey::Place::middle, PassKey::Place::last}) {
    key.place = place;
    if (const auto found = passes.find(key); found != passes.end()) {
      return &found->second;
    }
  }
  return nullptr;
}

struct MH_API StageRecord {
  int64_t stage = 0;
  int64_t parameters = 0, gradients = 0, state = 0; ///< bytes that stay from step to step
  bool own_masters = true; ///< parameters are their own masters, else those are in `state`
  int64_t batches = 0; ///< likewise, on a CPU: the arrays of this step and, behind them, the next
  ByPass<PassRecord> passes;
  PassRecord closing;         ///< after the last pass: sums over ranks, norm, update
  size_t optimizer_event = 0; ///< index in `closing` at which the update begins
  std::vector<PlannedCollective> collectives;
  std::vector<size_t> arriving; ///< collectives that the step before began, in order: values that
                                ///< others updated arrive during the first passes

  [[nodiscard]] const PassRecord& of(const Instruction& one, int64_t microbatches) const;

  /// Bytes that stay from step to step.
  [[nodiscard]] int64_t kept() const { return parameters + gradients + state + batches; }
};

/// The recipe that is planned, and the kind of device.
struct PlanTarget {
  const Recipe& recipe;
  Host& host;
  int64_t world = 1;
  at::DeviceType device = at::kCPU;
  double imbalance = 1; ///< rows that the busiest rank's experts get, times the mean
};

/// The kind of device that the recipe names, as kernels are chosen for it: the CPU or a GPU.
[[nodiscard]] MH_API at::DeviceType planned_device(const Recipe& recipe, Host& host);

/// The steps of a recipe on its ranks, one record per pipeline stage.
struct RecordedStep {
  at::DeviceType device = at::kCPU;
  MeshShape shape;
  PipelineSchedule::Args args;
  InstructionLists lists;           ///< instructions of each stage
  std::vector<LayoutChunk> layout;  ///< chunks of the pipeline; empty: one stage
  std::vector<StageRecord> records; ///< records of the distinct stages
  std::vector<size_t> record_of;    ///< by stage
  int64_t layers = 0;               ///< layers of the whole model
  double model_flops = 0;           ///< FLOPs of one sample, recomputation not counted
  int64_t tokens = 0;               ///< tokens of one sample
  int64_t parameters = 0;           ///< parameters of the whole model
  int64_t recorded = 0;             ///< stages' records that were made, a policy's trials included
  bool recomputed = false;          ///< every block runs again in the backward pass

  [[nodiscard]] const StageRecord& stage(int64_t stage) const {
    return records[record_of[static_cast<size_t>(stage)]];
  }
};

/// A step before anything of it is recorded: its layout, and the lists of so many microbatches.
///
/// `costs` are those of the model's blocks.
/// Throws:  mh::Error where layout or schedule are refused
[[nodiscard]] RecordedStep
planned_step(const PlanTarget& target, const std::vector<double>& costs, int64_t microbatches);

/// FLOPs of each block of the recipe's model for one token: embedding, layers, head.
[[nodiscard]] MH_API std::vector<double> block_costs(const Recipe& recipe, Host& host);

/// Throws:  mh::Error where the recipe asks for what is not there, or an operation has no shape
///          function
[[nodiscard]] MH_API RecordedStep record_step(const PlanTarget& target);

/// Answers what steps take that keep other activations; throws as `record_step`. Recipe and host
/// outlive it.
[[nodiscard]] MH_API StepPeak step_peak(const PlanTarget& target);

/// Records the step of one stage, of which the recipe's policy says what it keeps, with
/// `microbatches` microbatches, in the order of a schedule without overlap; 0: nothing but what
/// stays from step to step. Not for policies that measure what a step takes.
[[nodiscard]] StageRecord
record_stage(const PlanTarget& target, int64_t stage, RecordedStep& step, int64_t microbatches);

} // namespace mh
