#include "core/program/stage_transfers.hpp"

#include "core/step/pipeline_lists.hpp"

#include <ATen/TensorOperators.h>

#include <utility>

namespace mh::program {

using at::Tensor;

void RecordedTransfers::pass(const PipelineSchedule::Args& args, const Instruction& instruction) {
  phase_ = Phase::passes;
  if (is_pass(instruction.op)) {
    return;
  }
  const Transfer transfer = transfer_of(args, stage_, instruction);
  what_ = transfer.forward ? "activation." + std::to_string(transfer.from)
                           : "activation_gradient." + std::to_string(transfer.to());
  counts_[what_] = 0;
}

void RecordedTransfers::end_of_step(const std::string& next) {
  phase_ = Phase::end;
  next_ = next;
}

std::string RecordedTransfers::name_of(int64_t from, int64_t to) {
  const std::string what = phase_ == Phase::passes ? what_
                                                   : "shared_gradient." + std::to_string(from) +
                                                         "." + std::to_string(to);
  return what + "." + std::to_string(counts_[what]++);
}

void RecordedTransfers::cut_after_send() {
  if (std::exchange(sent_, false)) {
    modules_.begin(next_);
  }
}

void RecordedTransfers::send(const Tensor& tensor, int64_t to_stage) {
  if (phase_ != Phase::none) {
    modules_.output(name_of(stage_, to_stage), tensor);
    sent_ = phase_ == Phase::end;
  }
}

void RecordedTransfers::receive(const Tensor& into, int64_t from_stage) {
  if (phase_ == Phase::none) {
    Tensor(into).copy_(modules_.nobodys(into));
    return;
  }
  cut_after_send();
  const std::string name = name_of(from_stage, stage_);
  Tensor(into).copy_(modules_.input(name, into, StageResult{from_stage, name}));
}

Tensor RecordedTransfers::sum(const Tensor& own) {
  if (phase_ != Phase::end) {
    return modules_.nobodys(own);
  }
  const std::string name = "sum." + std::to_string(counts_["sum"]++);
  modules_.output(name, own);
  sent_ = true;
  cut_after_send();
  Tensor total;
  for (int64_t stage = 0; stage < stages_; ++stage) {
    const Tensor part =
        stage == stage_ ? own
                        : modules_.input(
                              name + ".stage" + std::to_string(stage), own, StageResult{stage, name}
                          );
    total = total.defined() ? total + part : part;
  }
  return total;
}

} // namespace mh::program
