#include "core/plan/compose.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>

namespace mh {

namespace {

using Op = Instruction::Op;

/// Sends and receives between this stage and the others, as the executor's transfers keep them.
class InFlight {
public:
  InFlight(int64_t stage, const PipelineSchedule::Args& args)
      : args_(args)
      , stage_(stage) {}

  [[nodiscard]] int64_t bytes() const { return bytes_; }

  void send(bool forward, const Instruction& one, int64_t bytes) {
    Peer& peer = peers_[neighbor_stage(one, forward ? 1 : -1)];
    peer.sent.push_back({peer.posted++, bytes});
    bytes_ += bytes;
  }

  void receive(bool forward, const Instruction& one) {
    const int64_t from = neighbor_stage(one, forward ? -1 : 1);
    arrivals_[{forward, one.chunk, one.microbatch}] = {from, peers_[from].posted++};
  }

  /// A pass waits for what it needs, if that comes from another stage.
  void wait(bool forward, const Instruction& one) {
    const auto found = arrivals_.find({forward, one.chunk, one.microbatch});
    if (found == arrivals_.end()) {
      return;
    }
    Peer& peer = peers_[found->second.from];
    while (!peer.sent.empty() && peer.sent.front().number < found->second.number) {
      bytes_ -= peer.sent.front().bytes;
      peer.sent.pop_front();
    }
    arrivals_.erase(found);
  }

  /// Everything has arrived.
  void finish() {
    peers_.clear();
    bytes_ = 0;
  }

private:
  struct Sent {
    int64_t number, bytes;
  };

  struct Peer {
    int64_t posted = 0;
    std::deque<Sent> sent;
  };

  struct Arrival {
    int64_t from, number;
  };

  /// The stage of the chunk after (1) or before (-1) that of `one` in the model.
  [[nodiscard]] int64_t neighbor_stage(const Instruction& one, int64_t step) const {
    return args_.stage_of(args_.chunk_of(stage_, one.chunk) + step);
  }

  PipelineSchedule::Args args_;
  int64_t stage_;
  int64_t bytes_ = 0;
  std::map<int64_t, Peer> peers_;
  std::map<std::tuple<bool, int32_t, int32_t>, Arrival> arrivals_;
};

} // namespace

StageMemory compose_memory(const RecordedStep& step, int64_t stage) {
  return compose_memory(step, stage, step.stage(stage));
}

StageMemory compose_memory(const RecordedStep& step, int64_t stage, const StageRecord& record) {
  StageMemory memory;
  InFlight flight(stage, step.args);
  int64_t now = 0;
  const auto see = [&](const PassRecord& pass, bool closing) {
    if (const int64_t bytes = now + flight.bytes() + pass.peak; bytes > memory.activations) {
      memory.activations = bytes;
      memory.sending = flight.bytes();
      memory.closing = closing;
    }
    memory.working = std::max(memory.working, now + flight.bytes() + pass.working);
    now += pass.net;
  };
  for (const auto& one : step.lists[static_cast<size_t>(stage)]) {
    const PassRecord& pass = record.of(one, step.args.microbatches);
    if (one.op == Op::forward) {
      flight.wait(/*forward=*/true, one);
    } else if (one.op == Op::backward || one.op == Op::backward_input) {
      flight.wait(/*forward=*/false, one);
    } else if (one.op == Op::receive_forward || one.op == Op::receive_backward) {
      flight.receive(one.op == Op::receive_forward, one);
    }
    see(pass, /*closing=*/false);
    if (one.op == Op::send_forward || one.op == Op::send_backward) {
      flight.send(one.op == Op::send_forward, one, pass.sent);
    }
  }
  flight.finish();
  see(record.closing, /*closing=*/true);
  memory.peak = record.kept() + memory.activations;
  memory.working += record.kept();
  return memory;
}

} // namespace mh
