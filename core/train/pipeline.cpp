#include "core/train/pipeline.hpp"

#include <utility>

namespace mh {

Pipeline::Pipeline(Make make, int64_t stages, int64_t virtual_stages)
    : make_(std::move(make))
    , args_{.stages = stages, .virtual_stages = virtual_stages} {}

const Pipeline::Lists& Pipeline::lists(int64_t microbatches) const {
  auto found = known_.find(microbatches);
  if (found == known_.end()) {
    auto args = args_;
    args.microbatches = microbatches;
    const auto schedule = make_(args);
    auto lists = lists_of(*schedule, args.stages);
    check_lists(args, lists, [&](int64_t stage) { return schedule->most_live(stage); });
    auto evaluation = forward_lists(args, lists);
    found = known_.emplace(microbatches, Lists{std::move(lists), std::move(evaluation)}).first;
  }
  return found->second;
}

const InstructionLists& Pipeline::training(int64_t microbatches) const {
  return lists(microbatches).training;
}

const InstructionLists& Pipeline::evaluation(int64_t microbatches) const {
  return lists(microbatches).evaluation;
}

} // namespace mh
