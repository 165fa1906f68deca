#include "core/step/pipeline_clock.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <utility>

namespace mh {

namespace {

using Op = Instruction::Op;

bool is_send(Op op) {
  return op == Op::send_forward || op == Op::send_backward;
}

class ListClock {
public:
  ListClock(
      const PipelineSchedule::Args& args, const InstructionLists& lists, const PassTimes& times
  )
      : args_(args)
      , lists_(lists)
      , times_(times)
      , stages_(lists.size()) {
    timeline_.stages.resize(lists.size());
  }

  ClockedRun run() && {
    for (bool moved = true; moved && fault_.empty();) {
      moved = false;
      for (int64_t stage = 0; stage < args_.stages; ++stage) {
        while (fault_.empty() && step(stage)) {
          moved = true;
        }
      }
    }
    if (fault_.empty()) {
      fault_ = stuck();
    }
    return {std::move(timeline_), std::move(fault_)};
  }

private:
  struct Stage {
    size_t next = 0;
    double clock = 0;
  };

  /// One end of a transfer, posted.
  struct End {
    int64_t stage;
    Instruction what;
    Transfer transfer;
    double time;
  };

  struct Pair {
    std::array<std::deque<End>, 2> ends; // ends of the lower stage, and of the higher one
    std::array<double, 2> free{};        // when the transfer before it in its direction is over
  };

  [[nodiscard]] Stage& at(int64_t stage) { return stages_[static_cast<size_t>(stage)]; }

  /// Runs the next instruction of a stage if what it waits for is there.
  bool step(int64_t number) {
    Stage& stage = at(number);
    const auto& list = lists_[static_cast<size_t>(number)];
    if (stage.next == list.size()) {
      return false;
    }
    const Instruction& what = list[stage.next];
    if (is_pass(what.op) ? !pass(number, what) : !post(number, what)) {
      return false;
    }
    ++stage.next;
    return true;
  }

  bool pass(int64_t number, const Instruction& what) {
    Stage& stage = at(number);
    const int64_t chunk = args_.chunk_of(number, what.chunk);
    const bool forward = what.op == Op::forward;
    const int64_t source = forward ? chunk - 1 : chunk + 1;
    double begin = stage.clock;
    const bool weight = what.op == Op::backward_weight;
    if (!weight && source >= 0 && source < args_.chunks()) {
      const auto arrived = arrived_.find({forward, source, what.microbatch});
      if (arrived == arrived_.end()) {
        return false;
      }
      begin = std::max(begin, arrived->second);
    }
    stage.clock = begin + length(what.op, static_cast<size_t>(chunk));
    if (!weight && neighbour(args_, number, what.chunk, forward ? 1 : -1) >= 0) {
      arrived_[{forward, chunk, what.microbatch}] = stage.clock;
    }
    timeline_.length = std::max(timeline_.length, stage.clock);
    timeline_.stages[static_cast<size_t>(number)].push_back({what, begin, stage.clock});
    return true;
  }

  [[nodiscard]] double length(Op op, size_t chunk) const {
    double sum = op == Op::forward ? times_.forward[chunk] : 0;
    sum += op == Op::backward || op == Op::backward_input ? times_.backward_input[chunk] : 0;
    sum += op == Op::backward || op == Op::backward_weight ? times_.backward_weight[chunk] : 0;
    return sum;
  }

  bool post(int64_t number, const Instruction& what) {
    Stage& stage = at(number);
    const Transfer transfer = transfer_of(args_, number, what);
    const int64_t other = args_.stage_of(is_send(what.op) ? transfer.to() : transfer.from);
    Pair& pair = pairs_[std::minmax(number, other)];
    pair.ends.at(number < other ? 0 : 1).push_back({number, what, transfer, stage.clock});
    meet(pair);
    return true;
  }

  void meet(Pair& pair) {
    auto& [low, high] = pair.ends;
    while (!low.empty() && !high.empty() && fault_.empty()) {
      const End a = low.front(), b = high.front();
      if (a.transfer != b.transfer || is_send(a.what.op) == is_send(b.what.op)) {
        fault_ = "stages " + std::to_string(a.stage) + " and " + std::to_string(b.stage) +
                 " have their transfers in another order: " + to_string(a.what) + " meets " +
                 to_string(b.what);
        return;
      }
      low.pop_front();
      high.pop_front();
      const bool upwards = is_send(a.what.op); // room for what comes was made a pass before
      double& free = pair.free.at(upwards ? 0 : 1);
      free = std::max(free, upwards ? a.time : b.time) + times_.transfer;
      arrived_[a.transfer] = free;
    }
  }

  /// The instructions that the stages wait for that have not come to their ends.
  [[nodiscard]] std::string stuck() const {
    std::string text;
    for (size_t stage = 0; stage < stages_.size(); ++stage) {
      if (stages_[stage].next < lists_[stage].size()) {
        text += (text.empty() ? "stage " : ", stage ") + std::to_string(stage) + " at " +
                to_string(lists_[stage][stages_[stage].next]);
      }
    }
    if (!text.empty()) {
      return "stages wait for one another forever: " + text;
    }
    for (const auto& [stages, pair] : pairs_) {
      for (const auto& queue : pair.ends) {
        if (!queue.empty()) {
          return "stage " + std::to_string(queue.front().stage) + " has " +
                 to_string(queue.front().what) + ", which nothing meets";
        }
      }
    }
    return "";
  }

  PipelineSchedule::Args args_;
  const InstructionLists& lists_;
  const PassTimes& times_;
  std::vector<Stage> stages_;
  std::map<std::pair<int64_t, int64_t>, Pair> pairs_;
  std::map<Transfer, double> arrived_;
  Timeline timeline_;
  std::string fault_;
};

} // namespace

ClockedRun run_by_clock(
    const PipelineSchedule::Args& args, const InstructionLists& lists, const PassTimes& times
) {
  return ListClock(args, lists, times).run();
}

double Timeline::idle() const {
  double work = 0;
  for (const auto& stage : stages) {
    for (const auto& pass : stage) {
      work += pass.end - pass.begin;
    }
  }
  return length > 0 ? 1 - work / (length * static_cast<double>(stages.size())) : 0;
}

Timeline simulate(
    const PipelineSchedule::Args& args, const InstructionLists& lists, const PassTimes& times
) {
  return run_by_clock(args, lists, times).timeline;
}

} // namespace mh
