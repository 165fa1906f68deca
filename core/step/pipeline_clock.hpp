#pragma once
/// All stages' lists run side by side, with a clock.

#include "core/step/pipeline_lists.hpp"

#include <string>

namespace mh {

struct ClockedRun {
  Timeline timeline;
  std::string fault; ///< why it does not end, or what met what it should not; empty if all is well
};

/// Passes and transfers are well-formed, each on its own stage (`check_lists` looks before).
[[nodiscard]] ClockedRun run_by_clock(
    const PipelineSchedule::Args& args, const InstructionLists& lists, const PassTimes& times
);

} // namespace mh
