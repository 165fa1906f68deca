#pragma once
/// The uses of any pipeline schedule's lists: they are proven, timed, and their forward passes are
/// taken for an evaluation.

#include "megahost/pipeline_schedule.hpp"

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace mh {

[[nodiscard]] constexpr bool is_pass(Instruction::Op op) {
  return op <= Instruction::Op::backward_weight;
}

/// "backward_input".
[[nodiscard]] std::string_view op_name(Instruction::Op op);

/// A tensor's way between two chunks of the model.
struct Transfer {
  bool forward = true;
  int64_t from = 0; ///< chunk of the model
  int32_t microbatch = 0;

  [[nodiscard]] int64_t to() const { return forward ? from + 1 : from - 1; }

  friend auto operator<=>(const Transfer&, const Transfer&) = default;
};

/// The transfer of a send or a receive of stage `stage`.
[[nodiscard]] Transfer
transfer_of(const PipelineSchedule::Args& args, int64_t stage, const Instruction& instruction);

/// The chunk `step` (1: the next one, -1: the one before) after chunk `local` of stage `stage` in
/// the model, by its number on this stage; -1 if it lies on another one, or there is none.
[[nodiscard]] int32_t
neighbour(const PipelineSchedule::Args& args, int64_t stage, int32_t local, int64_t step);

[[nodiscard]] InstructionLists lists_of(const PipelineSchedule& schedule, int64_t stages);

/// The same forward passes in the same order, and nothing else: an evaluation.
[[nodiscard]] InstructionLists
forward_lists(const PipelineSchedule::Args& args, const InstructionLists& lists);

/// Proves lists.
///
/// Each pass is there once, with what it needs and what it hands on; no stage holds more than
/// `most_live(stage)` passes (0: any number); and no stage waits forever, where the transfers
/// between two stages meet one another in the order in which they were posted, and a stage posts at
/// most kSendsAhead sends ahead of the other.
///
/// Throws:  mh::Error naming stage and instruction of the first fault
void check_lists(
    const PipelineSchedule::Args& args,
    const InstructionLists& lists,
    const std::function<int64_t(int64_t)>& most_live
);

/// The durations of passes, by chunk of the model, in any unit of time.
struct PassTimes {
  std::vector<double> forward, backward_input, backward_weight;
  double transfer = 0;

  /// All passes alike.
  static PassTimes even(int64_t chunks) {
    const auto count = static_cast<size_t>(chunks);
    return {std::vector(count, 1.0), std::vector(count, 1.0), std::vector(count, 1.0)};
  }
};

struct TimedPass {
  Instruction what;
  double begin = 0, end = 0;
};

/// The passes of each stage with their times.
struct Timeline {
  std::vector<std::vector<TimedPass>> stages;
  double length = 0; ///< duration of the whole step

  /// Time without work, as a share of the step.
  [[nodiscard]] double idle() const;

  /// Time without work over the time with work: (p - 1) / m for 1F1B.
  [[nodiscard]] double bubble() const { return idle() / (1 - idle()); }
};

/// Runs lists by the clock; they must pass `check_lists`.
[[nodiscard]] Timeline
simulate(const PipelineSchedule::Args& args, const InstructionLists& lists, const PassTimes& times);

} // namespace mh
