#pragma once
/// Memory of a whole step from the records of its passes, in the order of the schedule's lists.

#include "core/plan/stage_record.hpp"

#include <cstdint>

namespace mh {

/// Bytes of one stage's tensors.
struct StageMemory {
  int64_t activations = 0; ///< at the peak: everything that does not stay from step to step
  int64_t sending = 0;     ///< bytes of these that are on their way to other stages
  int64_t peak = 0;        ///< with what stays
  int64_t working = 0;     ///< the peak with what a CPU's kernels take while they run
  bool closing = false;    ///< the peak is after the last pass: sums, norm, update
};

/// The memory of a step of stage `stage`. A tensor that was sent is in use until one that was
/// posted later has come from the same stage (train/transfers.hpp).
[[nodiscard]] MH_API StageMemory compose_memory(const RecordedStep& step, int64_t stage);

/// The memory of a step of stage `stage`, with `record` as the record of its passes.
[[nodiscard]] StageMemory
compose_memory(const RecordedStep& step, int64_t stage, const StageRecord& record);

} // namespace mh
