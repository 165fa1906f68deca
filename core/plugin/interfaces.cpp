// The destructors that anchor each interface's vtable and type in libmegahost, so that a plugin and
// its host share one of each.

#include "megahost/corpus.hpp"
#include "megahost/device.hpp"
#include "megahost/launcher.hpp"
#include "megahost/lr_schedule.hpp"
#include "megahost/optimizer.hpp"
#include "megahost/pipeline_schedule.hpp"
#include "megahost/program_device.hpp"
#include "megahost/recompute.hpp"
#include "megahost/strategy.hpp"
#include "megahost/tokenizer.hpp"

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace mh {

Strategy::~Strategy() = default;
AttentionMethod::~AttentionMethod() = default;
RecomputePolicy::~RecomputePolicy() = default;
Optimizer::~Optimizer() = default;

std::vector<StateSpec> Optimizer::state_of(const std::string&, const std::vector<int64_t>&) const {
  return state();
}

void Optimizer::set_parameters(std::span<UpdateItem> items) const {
  for (auto& item : items) {
    if (item.parameter.defined()) {
      item.parameter.copy_(item.weight);
    }
  }
}

LrSchedule::~LrSchedule() = default;
PipelineSchedule::~PipelineSchedule() = default;
Corpus::~Corpus() = default;

Tokenizer::~Tokenizer() = default;
Launcher::~Launcher() = default;
Device::~Device() = default;
ProgramDevice::Buffer::~Buffer() = default;
ProgramDevice::Program::~Program() = default;

c10::intrusive_ptr<c10d::Backend> Device::transport(const Members&) const {
  return {};
}

} // namespace mh
