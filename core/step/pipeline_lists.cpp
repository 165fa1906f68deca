#include "core/step/pipeline_lists.hpp"

#include "core/model/plugin_call.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

namespace mh {

namespace {

using Op = Instruction::Op;

/// One transfer on its way: the pass that makes it, and the one that needs it, by their numbers in
/// the stages' lists.
struct Leg {
  double made = 0; // when
  Transfer what;
  int64_t from = 0, to = 0; // stages
  size_t maker = 0, user = 0;
};

/// When each pass would be done if transfers took no time, in units of one pass.
class PassOrder {
public:
  PassOrder(const PipelineSchedule::Args& args, const InstructionLists& passes)
      : args_(args)
      , passes_(passes)
      , next_(passes.size())
      , clock_(passes.size()) {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t stage = 0; stage < passes_.size(); ++stage) {
        while (next_[stage] < passes_[stage].size() && step(stage)) {
          moved = true;
        }
      }
    }
    for (size_t stage = 0; stage < passes_.size(); ++stage) {
      if (next_[stage] < passes_[stage].size()) {
        throw Error(
            "stage " + std::to_string(stage) + " waits forever for what " +
            to_string(passes_[stage][next_[stage]]) + " needs"
        );
      }
    }
  }

  /// Instructions by time.
  [[nodiscard]] std::vector<Leg> legs() && {
    std::sort(legs_.begin(), legs_.end(), [](const Leg& a, const Leg& b) {
      return std::tie(a.made, a.what) < std::tie(b.made, b.what);
    });
    return std::move(legs_);
  }

private:
  struct Done {
    double time = 0;
    size_t number = 0; // in its stage's list
  };

  bool step(size_t stage) {
    const Instruction& pass = passes_[stage][next_[stage]];
    const auto here = static_cast<int64_t>(stage);
    const int64_t chunk = args_.chunk_of(here, pass.chunk);
    const bool forward = pass.op == Op::forward;
    const bool weight = pass.op == Op::backward_weight;
    const int64_t source = forward ? chunk - 1 : chunk + 1;
    double begin = clock_[stage];
    if (!weight && source >= 0 && source < args_.chunks()) {
      const Transfer what{forward, source, pass.microbatch};
      const auto made = done_.find(what);
      if (made == done_.end()) {
        return false;
      }
      begin = std::max(begin, made->second.time);
      if (const int64_t from = args_.stage_of(source); from != here) {
        legs_.push_back({made->second.time, what, from, here, made->second.number, next_[stage]});
      }
    }
    const double end = begin + (pass.op == Op::backward ? 2 : 1);
    if (!weight) {
      done_[{forward, chunk, pass.microbatch}] = {end, next_[stage]};
    }
    clock_[stage] = end;
    ++next_[stage];
    return true;
  }

  PipelineSchedule::Args args_;
  const InstructionLists& passes_;
  std::vector<size_t> next_;
  std::vector<double> clock_;
  std::map<Transfer, Done> done_; // what each pass hands on
  std::vector<Leg> legs_;
};

/// A stage's end of a transfer, and before which of its passes it stands.
struct End {
  const Leg* leg = nullptr;
  bool sends = false;
  size_t place = 0;
};

/// The ends of the transfers between two stages on one of them, in order. A send stands after its
/// pass; a receive one pass before its own, but not after a later send, nor before an earlier one.
void place_receives(std::vector<End*>& queue) {
  size_t limit = SIZE_MAX;
  for (auto end = queue.rbegin(); end != queue.rend(); ++end) {
    if (!(*end)->sends) {
      const size_t user = (*end)->leg->user;
      (*end)->place = std::min(user > 0 ? user - 1 : 0, limit);
    }
    limit = std::min(limit, (*end)->place);
  }
  size_t earliest = 0;
  for (End* end : queue) {
    end->place = std::max(end->place, earliest);
    earliest = end->place;
  }
}

Instruction instruction_of(const PipelineSchedule::Args& args, const End& end) {
  const Transfer& what = end.leg->what;
  const int64_t chunk = end.sends ? what.from : what.to();
  const Op op = what.forward ? (end.sends ? Op::send_forward : Op::receive_forward)
                             : (end.sends ? Op::send_backward : Op::receive_backward);
  return {op, static_cast<int32_t>(chunk / args.stages), what.microbatch};
}

std::vector<Instruction> list_of(
    const PipelineSchedule::Args& args,
    int64_t stage,
    const std::vector<Instruction>& passes,
    const std::vector<Leg>& legs
) {
  std::vector<End> ends;
  for (const Leg& leg : legs) {
    if (leg.from == stage) {
      ends.push_back({&leg, true, leg.maker + 1});
    } else if (leg.to == stage) {
      ends.push_back({&leg, false, 0});
    }
  }
  std::map<int64_t, std::vector<End*>> queues; // by the other stage
  for (End& end : ends) {
    queues[end.sends ? end.leg->to : end.leg->from].push_back(&end);
  }
  for (auto& [other, queue] : queues) {
    place_receives(queue);
  }
  std::stable_sort(ends.begin(), ends.end(), [](const End& a, const End& b) {
    return a.place < b.place;
  });
  std::vector<Instruction> list;
  auto end = ends.begin();
  for (size_t i = 0; i <= passes.size(); ++i) {
    for (; end != ends.end() && end->place == i; ++end) {
      list.push_back(instruction_of(args, *end));
    }
    if (i < passes.size()) {
      list.push_back(passes[i]);
    }
  }
  return list;
}

} // namespace

std::string_view op_name(Op op) {
  static constexpr std::array kNames{
      "forward",
      "backward",
      "backward_input",
      "backward_weight",
      "send_forward",
      "receive_forward",
      "send_backward",
      "receive_backward"};
  return kNames.at(static_cast<size_t>(op));
}

std::string to_string(const Instruction& instruction) {
  return std::string(op_name(instruction.op)) + " of chunk " + std::to_string(instruction.chunk) +
         ", microbatch " + std::to_string(instruction.microbatch);
}

InstructionLists
with_transfers(const PipelineSchedule::Args& args, const InstructionLists& passes) {
  if (args.stages == 1) {
    return passes;
  }
  const std::vector<Leg> legs = PassOrder(args, passes).legs();
  InstructionLists lists;
  for (size_t stage = 0; stage < passes.size(); ++stage) {
    lists.push_back(list_of(args, static_cast<int64_t>(stage), passes[stage], legs));
  }
  return lists;
}

Transfer
transfer_of(const PipelineSchedule::Args& args, int64_t stage, const Instruction& instruction) {
  const int64_t chunk = args.chunk_of(stage, instruction.chunk);
  switch (instruction.op) {
  case Op::send_forward:
    return {true, chunk, instruction.microbatch};
  case Op::receive_forward:
    return {true, chunk - 1, instruction.microbatch};
  case Op::send_backward:
    return {false, chunk, instruction.microbatch};
  case Op::receive_backward:
    return {false, chunk + 1, instruction.microbatch};
  case Op::forward:
  case Op::backward:
  case Op::backward_input:
  case Op::backward_weight:
    break;
  }
  throw InternalError(to_string(instruction) + " transfers nothing");
}

int32_t neighbour(const PipelineSchedule::Args& args, int64_t stage, int32_t local, int64_t step) {
  const int64_t chunk = args.chunk_of(stage, local) + step;
  const bool here = chunk >= 0 && chunk < args.chunks() && args.stage_of(chunk) == stage;
  return here ? static_cast<int32_t>(chunk / args.stages) : -1;
}

InstructionLists lists_of(const PipelineSchedule& schedule, int64_t stages) {
  InstructionLists lists;
  for (int64_t stage = 0; stage < stages; ++stage) {
    lists.push_back(in_plugin(schedule, "instructions", [&] {
      return schedule.instructions(stage);
    }));
  }
  return lists;
}

InstructionLists forward_lists(const PipelineSchedule::Args& args, const InstructionLists& lists) {
  InstructionLists passes = lists;
  for (auto& list : passes) {
    std::erase_if(list, [](const Instruction& one) { return one.op != Op::forward; });
  }
  return with_transfers(args, passes);
}

} // namespace mh
