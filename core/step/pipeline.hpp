#pragma once
/// The pipeline of a run: its schedule's lists for any number of microbatches, proved before they
/// are used.

#include "core/step/pipeline_lists.hpp"
#include "megahost/pipeline_schedule.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

namespace mh {

class Pipeline {
public:
  using Make = std::function<std::unique_ptr<PipelineSchedule>(const PipelineSchedule::Args&)>;

  /// `args` are those of a full step; `make` is called again for each other number of microbatches.
  ///
  /// Throws:  as `training`
  Pipeline(Make make, const PipelineSchedule::Args& args);

  /// The schedule's arguments, with its order of chunks.
  [[nodiscard]] const PipelineSchedule::Args& args() const { return args_; }

  /// Every stage's instructions of a training step.
  ///
  /// Throws:  mh::Error if the schedule refuses that number, or is faulty
  [[nodiscard]] const InstructionLists& training(int64_t microbatches) const;

  /// Every stage's instructions of an evaluation: the same forward passes.
  [[nodiscard]] const InstructionLists& evaluation(int64_t microbatches) const;

private:
  struct Lists {
    InstructionLists training, evaluation;
  };

  const Lists& lists(int64_t microbatches) const;
  const Lists& remember(const PipelineSchedule::Args& args, InstructionLists training) const;

  Make make_;
  PipelineSchedule::Args args_;
  mutable std::map<int64_t, Lists> known_; // by microbatches
};

} // namespace mh
