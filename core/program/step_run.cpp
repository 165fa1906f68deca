#include "core/program/step_run.hpp"

#include "megahost/error.hpp"

#include <ATen/ops/scalar_tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <array>
#include <utility>

namespace mh::program {

namespace {

int64_t bytes_of(const Port& port) {
  return c10::multiply_integers(port.sizes) * static_cast<int64_t>(c10::elementSize(port.dtype));
}

/// Bytes of a device of a stage at the step's peak.
int64_t memory_of(const StageProgram& stage, const CompiledStage& compiled) {
  std::map<std::pair<std::string, int64_t>, int64_t> held; // by name and microbatch
  int64_t sum = 0, most = 0;
  const auto add = [&](const Port& port, int64_t microbatch) {
    int64_t& bytes = held[{port.name, microbatch}];
    sum += bytes_of(port) - bytes;
    bytes = bytes_of(port);
  };
  for (const auto* ports : {&stage.tensors, &stage.carried}) {
    for (const Port& port : *ports) {
      add(port, -1);
    }
  }
  for (size_t t = 0; t < stage.turns.size(); ++t) {
    const ModuleTurn& turn = stage.turns[t];
    const Module& module = stage.modules[turn.module];
    const auto microbatch = [&](const std::string& name) {
      return compiled.of_microbatches.contains(name) ? turn.microbatch : -1;
    };
    int64_t own = compiled.programs[turn.module]->memory();
    for (const Port& port : module.inputs) {
      const auto found = held.find({port.name, microbatch(port.name)});
      own -= found == held.end() ? 0 : found->second;
    }
    most = std::max(most, sum + own);
    for (const Port& port : module.outputs) {
      add(port, microbatch(port.name));
    }
    for (const std::string& name : compiled.dropped[t]) {
      const auto found = held.find({name, microbatch(name)});
      if (found != held.end()) {
        sum -= found->second;
        held.erase(found);
      }
    }
  }
  return most;
}

} // namespace

CompiledStep::CompiledStep(StepProgram of_all)
    : step(std::move(of_all))
    , stages(step.stages.size()) {
  std::set<std::string> numbers;
  for (const StepNumber& number : step.numbers()) {
    numbers.insert(number.port.name);
  }
  for (size_t s = 0; s < stages.size(); ++s) {
    stages[s].dropped = step.stages[s].dropped_after(numbers);
    stages[s].of_microbatches = step.stages[s].of_microbatches();
    std::set<std::string> seen;
    for (const Module& module : step.stages[s].modules) {
      for (const Port& port : module.inputs) {
        if (port.from && seen.insert(port.name).second) {
          stages[static_cast<size_t>(port.from->stage)].takers[port.from->name].push_back(
              {s, port.name}
          );
        }
      }
    }
  }
}

int64_t CompiledStep::memory() const {
  int64_t most = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    most = std::max(most, memory_of(step.stages[s], stages[s]));
  }
  return most;
}

StepData step_data(
    const ProgramDevice& device,
    const StepProgram& step,
    std::span<const Batch> microbatches,
    const StepOptions& options,
    double decay
) {
  const auto numbers = step_numbers(options, decay);
  StepData data(static_cast<size_t>(step.ranks()));
  for (const StageProgram& stage : step.stages) {
    std::map<std::string, at::ScalarType> asked;
    for (const Module& module : stage.modules) {
      for (const Port& port : module.inputs) {
        asked.emplace(port.name, port.dtype);
      }
    }
    for (size_t replica = 0; replica < stage.ranks.size(); ++replica) {
      const int64_t rank = stage.ranks[replica];
      auto& own = data[static_cast<size_t>(rank)];
      const auto add = [&](BuffersByName& named, const std::map<std::string, at::Tensor>& values) {
        for (const auto& [name, value] : values) {
          if (const auto dtype = asked.find(name); dtype != asked.end()) {
            named[name] = device.upload(value.to(dtype->second), rank);
          }
        }
      };
      for (const auto& inputs : microbatch_inputs(microbatches, step, rank)) {
        add(own.emplace_back(), inputs);
      }
      add(own.front(), numbers);
      add(own.front(), {{"rank", at::scalar_tensor(static_cast<int64_t>(replica), at::kInt)}});
    }
  }
  return data;
}

StepRun::StepRun(
    const ProgramDevice& device,
    const CompiledStep& compiled,
    const StepData& data,
    std::vector<BuffersByName>& ret_held
)
    : device_(device)
    , compiled_(compiled)
    , data_(data)
    , held_(ret_held)
    , of_microbatches_(ret_held.size())
    , next_(compiled.stages.size()) {
  for (auto& of_rank : of_microbatches_) {
    of_rank.resize(static_cast<size_t>(compiled.step.microbatches));
  }
}

void StepRun::run() {
  bool moves = true;
  while (std::exchange(moves, false)) {
    for (size_t stage = 0; stage < next_.size(); ++stage) {
      moves = advance(stage) || moves;
    }
  }
  for (size_t stage = 0; stage < next_.size(); ++stage) {
    MH_ASSERT(
        next_[stage] == compiled_.step.stages[stage].turns.size(),
        "stage " + std::to_string(stage) + " waits for the others forever"
    );
  }
}

bool StepRun::advance(size_t stage) {
  const auto& turns = compiled_.step.stages[stage].turns;
  const size_t first = next_[stage];
  while (next_[stage] < turns.size() && is_ready(stage, turns[next_[stage]])) {
    run_turn(stage, next_[stage]++);
  }
  return next_[stage] > first;
}

bool StepRun::is_ready(size_t stage, const ModuleTurn& turn) const {
  const StageProgram& program = compiled_.step.stages[stage];
  return std::ranges::all_of(program.modules[turn.module].inputs, [&](const Port& port) {
    return !port.from || find(program.ranks.front(), turn.microbatch, port.name) != nullptr;
  });
}

void StepRun::run_turn(size_t stage, size_t number) {
  const StageProgram& program = compiled_.step.stages[stage];
  const CompiledStage& compiled = compiled_.stages[stage];
  const ModuleTurn& turn = program.turns[number];
  const Module& module = program.modules[turn.module];
  auto results = compiled.programs[turn.module]->run(arguments_of(stage, turn));
  for (size_t replica = 0; replica < program.ranks.size(); ++replica) {
    for (size_t i = 0; i < module.outputs.size(); ++i) {
      const std::string& name = module.outputs[i].name;
      place_of(stage, program.ranks[replica], turn.microbatch, name)[name] =
          std::move(results[replica][i]);
    }
  }
  for (const Port& port : module.outputs) {
    hand_on(stage, turn, port.name);
  }
  for (const std::string& name : compiled.dropped[number]) {
    for (const int64_t rank : program.ranks) {
      place_of(stage, rank, turn.microbatch, name).erase(name);
    }
  }
}

StepRun::Arguments StepRun::arguments_of(size_t stage, const ModuleTurn& turn) const {
  const StageProgram& program = compiled_.step.stages[stage];
  const Module& module = program.modules[turn.module];
  Arguments arguments;
  for (const int64_t rank : program.ranks) {
    auto& own = arguments.emplace_back();
    for (const Port& port : module.inputs) {
      own.push_back(find(rank, turn.microbatch, port.name));
      MH_ASSERT(own.back() != nullptr, module.name + " misses " + port.name);
    }
  }
  return arguments;
}

void StepRun::hand_on(size_t stage, const ModuleTurn& turn, const std::string& result) {
  const auto takers = compiled_.stages[stage].takers.find(result);
  if (takers == compiled_.stages[stage].takers.end()) {
    return;
  }
  const auto& ranks = compiled_.step.stages[stage].ranks;
  for (const auto& [other, argument] : takers->second) {
    for (size_t replica = 0; replica < ranks.size(); ++replica) {
      const int64_t to = compiled_.step.stages[other].ranks[replica];
      place_of(other, to, turn.microbatch, argument)[argument] =
          device_.copy(*find(ranks[replica], turn.microbatch, result), to);
    }
  }
}

const ProgramDevice::Buffer*
StepRun::find(int64_t rank, int64_t microbatch, const std::string& name) const {
  const auto r = static_cast<size_t>(rank), m = static_cast<size_t>(microbatch);
  const std::array<const BuffersByName*, 4> places{
      &data_[r][m], &data_[r].front(), &of_microbatches_[r][m], &held_[r]};
  for (const BuffersByName* named : places) {
    if (const auto found = named->find(name); found != named->end()) {
      return found->second.get();
    }
  }
  return nullptr;
}

BuffersByName&
StepRun::place_of(size_t stage, int64_t rank, int64_t microbatch, const std::string& name) {
  const auto r = static_cast<size_t>(rank), m = static_cast<size_t>(microbatch);
  return compiled_.stages[stage].of_microbatches.contains(name) ? of_microbatches_[r][m] : held_[r];
}

} // namespace mh::program
