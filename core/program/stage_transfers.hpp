#pragma once
/// The transfers between pipeline stages as outputs and inputs of their modules.

#include "core/program/collectives.hpp"
#include "core/program/module_recorder.hpp"
#include "megahost/pipeline_schedule.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

namespace mh::program {

/// Before it is told what is recorded, transfers lead nowhere.
class RecordedTransfers : public StageTransfers {
public:
  /// The recorder outlives it. `stage`: the one of `stages` that is recorded.
  RecordedTransfers(ModuleRecorder& modules, int64_t stage, int64_t stages)
      : modules_(modules)
      , stage_(stage)
      , stages_(stages) {}

  /// A pass of one microbatch, or a transfer of one, comes next.
  void pass(const PipelineSchedule::Args& args, const Instruction& instruction);

  /// The end of a step comes next. Where a module needs what other stages compute from its results,
  /// another one begins, of the name `next`.
  void end_of_step(const std::string& next);

  /// Transfers lead nowhere again.
  void stop() { phase_ = Phase::none; }

  void send(const at::Tensor& tensor, int64_t to_stage) override;
  void receive(const at::Tensor& into, int64_t from_stage) override;
  at::Tensor sum(const at::Tensor& own) override;

private:
  enum class Phase : uint8_t { none, passes, end };

  [[nodiscard]] std::string name_of(int64_t from, int64_t to);
  /// Begins another module, if the one at hand has sent.
  void cut_after_send();

  ModuleRecorder& modules_;
  int64_t stage_, stages_;
  Phase phase_ = Phase::none;
  std::string what_; // the tensors of a pass, such as "activation.0"
  std::string next_;
  bool sent_ = false;
  std::map<std::string, int64_t> counts_; // transfers by what they are
};

} // namespace mh::program
