#include "core/plan/stage_clock.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace mh {

StageClock::StageClock(
    const StageRecord& record, const Machine& machine, const MeshShape& shape, bool scattered
)
    : record_(record)
    , machine_(machine)
    , parts_(scattered ? shape.tp : 1) {
  for (const auto& [key, pass] : record.passes) {
    passes_.emplace(key, pass_time(pass.events, record.collectives, machine));
  }
  transfer_ = longest_transfer();
}

double StageClock::longest_transfer() const {
  double longest = 0;
  for (const auto& [key, pass] : record_.passes) {
    double seconds = 0;
    for (const auto& event : pass.events) {
      const auto& collective = record_.collectives[event.collective];
      const bool sends =
          event.kind == PlanEvent::Kind::start && !is_pass(key.op) && collective.is("send");
      seconds += sends ? transfer_time(collective) : 0;
    }
    longest = std::max(longest, seconds);
  }
  return longest;
}

double StageClock::transfer_time(const PlannedCollective& transfer) const {
  if (parts_ == 1) {
    return collective_time(transfer, machine_);
  }
  SilentGroup group{"tp", {}};
  for (int64_t rank = 0; rank < parts_; ++rank) {
    group.members.push_back(rank);
  }
  PlannedCollective part = transfer, gather = transfer;
  part.bytes = gather.bytes = transfer.bytes / parts_;
  gather.name = "all-gather";
  gather.peer = -1;
  gather.group = std::make_shared<const SilentGroup>(group);
  return collective_time(part, machine_) + collective_time(gather, machine_);
}

std::pair<PassTime, PassTime> StageClock::close(const Stage& stage) const {
  std::map<size_t, double> under_way;
  std::map<std::string, double> free;
  const double end = stage.passes.empty() ? 0 : stage.passes.back().end;
  for (const auto& timed : stage.passes) {
    const auto one = stage.recorded(timed.what);
    if (!one || one->microbatch != stage.microbatches - 1) {
      continue;
    }
    const PassTime& alone = *find_pass(passes_, PassKey::of(*one, stage.microbatches));
    for (const auto& [number, begin] : alone.outstanding) {
      const auto& collective = record_.collectives[number];
      double& last = free[collective.group->axis];
      const double begun = timed.end - (alone.total() - begin);
      last = std::max(last, begun) + collective_time(collective, machine_);
      under_way[number] = last - end;
    }
  }
  const std::span<const PlanEvent> events(record_.closing.events);
  const auto sums = events.first(record_.optimizer_event);
  const auto update = events.subspan(record_.optimizer_event);
  return {
      pass_time(sums, record_.collectives, machine_, under_way),
      pass_time(update, record_.collectives, machine_)};
}

PassTime StageClock::late(const Stage& stage) const {
  std::map<size_t, double> over; // since the step began
  std::map<std::string, double> free;
  for (const size_t number : record_.arriving) {
    const auto& collective = record_.collectives[number];
    double& last = free[collective.group->axis];
    last += collective_time(collective, machine_);
    over[number] = last;
  }
  PassTime late;
  for (const auto& timed : stage.passes) {
    const auto one = stage.recorded(timed.what);
    if (over.empty() || !one || one->op != Instruction::Op::forward || one->microbatch != 0) {
      continue;
    }
    std::map<size_t, double> under_way;
    for (const auto& [number, end] : over) {
      under_way[number] = end - timed.begin * stage.share - late.total();
    }
    const auto& events = record_.of(*one, stage.microbatches).events;
    late.add(pass_time(events, record_.collectives, machine_, under_way));
    late.add(*find_pass(passes_, PassKey::of(*one, stage.microbatches)), -1);
  }
  return late;
}

ByPass<PassTime> TimedStage::passes() const {
  ByPass<PassTime> sum;
  for (size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    for (const auto& part : chunks[chunk]) {
      const auto wanted = part.chunk ? 0 : static_cast<int32_t>(chunk);
      for (const auto& [key, pass] : part.clock->passes()) {
        if (key.chunk == wanted) {
          sum[{key.op, static_cast<int32_t>(chunk), key.place}].add(pass, part.weight);
        }
      }
    }
  }
  return sum;
}

double TimedStage::transfer() const {
  double longest = 0;
  for (const auto& parts : chunks) {
    for (const auto& part : parts) {
      longest = std::max(longest, part.clock->transfer());
    }
  }
  return longest;
}

std::pair<PassTime, PassTime>
TimedStage::close(const std::vector<TimedPass>& passes, int64_t microbatches) const {
  std::pair<PassTime, PassTime> sum;
  for (const auto& part : closing) {
    const auto [sums, update] = part.clock->close({passes, microbatches, part.chunk, part.share});
    sum.first.add(sums, part.weight);
    sum.second.add(update, part.weight);
  }
  return sum;
}

PassTime TimedStage::late(const std::vector<TimedPass>& passes, int64_t microbatches) const {
  PassTime sum;
  for (const auto& part : closing) {
    sum.add(part.clock->late({passes, microbatches, part.chunk, part.share}), part.weight);
  }
  return sum;
}

} // namespace mh
