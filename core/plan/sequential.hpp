#pragma once
/// A pipeline without overlap: one microbatch after the other. It runs every kind of pass, which is
/// all that recording needs.

#include "core/step/pipeline.hpp"

namespace mh {

/// The lists of every stage. `splits`: backward passes in two parts.
[[nodiscard]] InstructionLists sequential_lists(const PipelineSchedule::Args& args, bool splits);

/// Gives them for any number of microbatches.
[[nodiscard]] Pipeline sequential_pipeline(const PipelineSchedule::Args& args, bool splits);

} // namespace mh
