#include "core/step/pipeline.hpp"

#include <utility>

namespace mh {

namespace {

InstructionLists proved(const PipelineSchedule& schedule, const PipelineSchedule::Args& args) {
  auto lists = lists_of(schedule, args.stages);
  check_lists(args, lists, [&](int64_t stage) { return schedule.most_live(stage); });
  return lists;
}

} // namespace

Pipeline::Pipeline(Make make, const PipelineSchedule::Args& args)
    : make_(std::move(make))
    , args_(args) {
  const auto schedule = make_(args_);
  args_.order = schedule->order();
  remember(args_, proved(*schedule, args_));
}

const Pipeline::Lists& Pipeline::lists(int64_t microbatches) const {
  const auto found = known_.find(microbatches);
  if (found != known_.end()) {
    return found->second;
  }
  auto args = args_;
  args.microbatches = microbatches;
  return remember(args, proved(*make_(args), args));
}

const Pipeline::Lists&
Pipeline::remember(const PipelineSchedule::Args& args, InstructionLists training) const {
  auto evaluation = forward_lists(args, training);
  return known_.emplace(args.microbatches, Lists{std::move(training), std::move(evaluation)})
      .first->second;
}

const InstructionLists& Pipeline::training(int64_t microbatches) const {
  return lists(microbatches).training;
}

const InstructionLists& Pipeline::evaluation(int64_t microbatches) const {
  return lists(microbatches).evaluation;
}

} // namespace mh
