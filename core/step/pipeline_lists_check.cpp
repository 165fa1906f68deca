#include "core/step/pipeline_clock.hpp"
#include "core/step/pipeline_lists.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <set>
#include <utility>

namespace mh {

namespace {

using Op = Instruction::Op;

/// One stage's list, on its own.
class StageCheck {
public:
  StageCheck(const PipelineSchedule::Args& args, int64_t stage, int64_t most_live)
      : args_(args)
      , stage_(stage)
      , most_live_(most_live) {}

  void run(const std::vector<Instruction>& list) {
    for (const Instruction& one : list) {
      in_range(one);
      if (!seen_.insert(key(one)).second) {
        fail("has " + to_string(one) + " twice");
      }
      in_order(one);
      count_live(one);
    }
    complete();
  }

private:
  using Key = std::pair<Op, std::pair<int32_t, int32_t>>;

  static Key key(const Instruction& one) { return {one.op, {one.chunk, one.microbatch}}; }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error("the schedule's list of stage " + std::to_string(stage_) + " " + what);
  }

  /// Whether a chunk's input is another stage's, and its output.
  [[nodiscard]] bool receives(const Instruction& one) const {
    return args_.chunk_of(stage_, one.chunk) > 0 && neighbour(args_, stage_, one.chunk, -1) < 0;
  }

  [[nodiscard]] bool sends(const Instruction& one) const {
    return args_.chunk_of(stage_, one.chunk) < args_.chunks() - 1 &&
           neighbour(args_, stage_, one.chunk, 1) < 0;
  }

  [[nodiscard]] bool has(Op op, const Instruction& one) const {
    return seen_.contains(key({op, one.chunk, one.microbatch}));
  }

  void in_range(const Instruction& one) const {
    if (one.chunk < 0 || one.chunk >= args_.virtual_stages || one.microbatch < 0 ||
        one.microbatch >= args_.microbatches) {
      fail(
          "has " + to_string(one) + ", but there are " + std::to_string(args_.virtual_stages) +
          " chunks and " + std::to_string(args_.microbatches) + " microbatches"
      );
    }
    const bool before = one.op == Op::receive_forward || one.op == Op::send_backward;
    const bool after = one.op == Op::send_forward || one.op == Op::receive_backward;
    if ((before && !receives(one)) || (after && !sends(one))) {
      fail(
          "has " + to_string(one) + ", but no chunk of another stage comes " +
          (before ? "before" : "after") + " it"
      );
    }
  }

  void needs(const Instruction& one, bool there, const Instruction& needed) const {
    if (!there) {
      fail("has " + to_string(one) + " before " + to_string(needed));
    }
  }

  /// A pass of the chunk before or after, where this stage has that, too.
  void needs_neighbor(const Instruction& one, int64_t step) const {
    if (const int32_t chunk = neighbour(args_, stage_, one.chunk, step); chunk >= 0) {
      Instruction needed = one;
      needed.chunk = chunk;
      const bool whole = step > 0 && has(Op::backward, needed);
      needed.op = step < 0 ? Op::forward : whole ? Op::backward : Op::backward_input;
      needs(one, has(needed.op, needed), needed);
    }
  }

  /// Checks that the instructions that this one needs come before it.
  void in_order(const Instruction& one) const {
    const auto need = [&](Op op) { needs(one, has(op, one), {op, one.chunk, one.microbatch}); };
    switch (one.op) {
    case Op::forward:
      if (receives(one)) {
        need(Op::receive_forward);
      }
      needs_neighbor(one, -1);
      break;
    case Op::backward:
    case Op::backward_input:
      need(Op::forward);
      if (sends(one)) {
        need(Op::receive_backward);
      }
      needs_neighbor(one, 1);
      if (has(one.op == Op::backward ? Op::backward_input : Op::backward, one)) {
        fail("has " + to_string(one) + " and the other form of it");
      }
      break;
    case Op::backward_weight:
      need(Op::backward_input);
      break;
    case Op::send_forward:
      need(Op::forward);
      break;
    case Op::send_backward:
      if (!has(Op::backward_input, one)) {
        need(Op::backward);
      }
      break;
    case Op::receive_forward:
    case Op::receive_backward:
      break;
    }
  }

  void count_live(const Instruction& one) {
    live_ += one.op == Op::forward ? 1 : 0;
    live_ -= one.op == Op::backward || one.op == Op::backward_weight ? 1 : 0;
    if (most_live_ > 0 && live_ > most_live_) {
      fail(
          "holds the activations of " + std::to_string(live_) + " passes at " + to_string(one) +
          ", the schedule promises at most " + std::to_string(most_live_)
      );
    }
  }

  void complete() const {
    for (int32_t chunk = 0; chunk < args_.virtual_stages; ++chunk) {
      for (int32_t m = 0; m < args_.microbatches; ++m) {
        const Instruction forward{Op::forward, chunk, m};
        const auto want = [&](bool wanted, Op op) {
          if (wanted && !has(op, forward)) {
            fail("lacks " + to_string({op, chunk, m}));
          }
        };
        want(true, Op::forward);
        want(sends(forward), Op::send_forward);
        if (!has(Op::backward_input, forward)) {
          want(true, Op::backward);
        } else {
          want(true, Op::backward_weight);
        }
        want(receives(forward), Op::send_backward);
      }
    }
  }

  PipelineSchedule::Args args_;
  int64_t stage_, most_live_;
  std::set<Key> seen_;
  int64_t live_ = 0;
};

} // namespace

void check_lists(
    const PipelineSchedule::Args& args,
    const InstructionLists& lists,
    const std::function<int64_t(int64_t)>& most_live
) {
  MH_ASSERT(static_cast<int64_t>(lists.size()) == args.stages, "each stage has a list");
  MH_ASSERT(args.stages > 1 || args.virtual_stages == 1, "virtual stages need several stages");
  for (size_t i = 0; i < lists.size(); ++i) {
    const auto stage = static_cast<int64_t>(i);
    StageCheck(args, stage, most_live(stage)).run(lists[i]);
  }
  const auto fault = run_by_clock(args, lists, PassTimes::even(args.chunks())).fault;
  if (!fault.empty()) {
    throw Error("the schedule's " + fault);
  }
}

} // namespace mh
