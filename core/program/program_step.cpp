#include "core/program/program_step.hpp"

#include "core/program/step_run.hpp"
#include "core/session/session.hpp"
#include "megahost/error.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace mh::program {

namespace {

using at::Tensor;
using DeviceBuffer = ProgramDevice::Buffer;

/// A step that the devices have begun, and the numbers that they will have.
struct Begun {
  const CompiledStep* compiled = nullptr;
  int64_t number = 0;
  /// In the order of StepProgram::numbers: of each stage that has it.
  std::vector<std::vector<std::unique_ptr<DeviceBuffer>>> numbers{};
  std::exception_ptr failed{}; ///< it could not be begun
};

/// The part of a whole tensor that a rank holds.
Tensor part_of(Tensor whole, const std::vector<int64_t>& offset, at::IntArrayRef sizes) {
  for (size_t d = 0; d < sizes.size(); ++d) {
    whole = whole.narrow(static_cast<int64_t>(d), offset[d], sizes[d]);
  }
  return whole;
}

/// Runs a device's work for a step: its errors say which one.
template <class Work>
auto of_step(int64_t number, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw Error(
        "step " + std::to_string(number) + ": " + error.what(), error.hint(), error.exit_code()
    );
  }
}

class ProgramStep : public DeviceStep {
public:
  ProgramStep(
      const Recipe& recipe,
      Session& session,
      Weights& weights,
      Host& host,
      const ProgramDevice& device
  )
      : recipe_(recipe)
      , session_(session)
      , weights_(weights)
      , host_(host)
      , device_(device) {
    for (size_t i = 0; i < weights_.stored().size(); ++i) {
      places_[weights_.stored()[i].name] = i;
    }
  }

  StepResult run(const Request& request, const Next& next) override {
    Begun begun = ahead_ ? std::move(*ahead_) : begin(request);
    ahead_.reset();
    MH_ASSERT(begun.number == request.number, "another step was begun than is asked for");
    if (begun.failed != nullptr) {
      std::rethrow_exception(begun.failed);
    }
    if (const Request* following = next ? next() : nullptr) {
      ahead_ = begin_or_fail(*following);
    }
    StepResult made = of_step(begun.number, [&] { return read(begun); });
    if (!made.updated) { // the step that was begun has changed nothing: it saw that this one failed
      ahead_.reset();
      const Port failed{kFailed, at::kBool};
      for (size_t rank = 0; rank < buffers_.size(); ++rank) {
        buffers_[rank][kFailed] = zeros(failed, rank);
      }
    }
    if (request.options.accept) {
      (void)request.options.accept(made);
    }
    return made;
  }

  void fetch() override {
    MH_ASSERT(!ahead_, "weights are read between steps");
    if (fetched_ || buffers_.empty()) {
      return;
    }
    const at::NoGradGuard no_grad;
    const StepProgram& step = compiled_.begin()->second.step;    // all have the same tensors
    std::set<std::pair<std::string, std::vector<int64_t>>> seen; // others may hold the same piece
    for (const StageProgram& stage : step.stages) {
      for (size_t i = 0; i < stage.tensors.size(); ++i) {
        for (size_t replica = 0; replica < stage.ranks.size(); ++replica) {
          const auto& offset = stage.offsets[replica][i];
          if (seen.emplace(stage.tensors[i].name, offset).second) {
            fetch_piece(stage.tensors[i], offset, buffers_[index_of(stage.ranks[replica])]);
          }
        }
      }
    }
    weights_.publish();
    fetched_ = true;
  }

  void send() override {
    ahead_.reset();
    buffers_.clear();
  }

  std::string note() const override {
    const int64_t ranks = recipe_.parallel.ranks();
    return ranks == 1 ? ""
                      : "steps run on " + std::to_string(ranks) +
                            " devices, the ranks of `parallel`; this process holds whole tensors";
  }

  int64_t memory() const override {
    int64_t most = 0;
    for (const auto& [microbatches, compiled] : compiled_) {
      most = std::max(most, compiled.memory());
    }
    return most;
  }

private:
  static size_t index_of(int64_t rank) { return static_cast<size_t>(rank); }

  /// Copies a device's piece of a tensor to the host's.
  void fetch_piece(
      const Port& port, const std::vector<int64_t>& offset, const BuffersByName& buffers
  ) const {
    const Tensor part = part_of(stored(port.name), offset, port.sizes);
    const bool direct = part.is_contiguous() && part.scalar_type() == port.dtype;
    const Tensor dense = direct ? part : at::empty(port.sizes, part.options().dtype(port.dtype));
    buffers.at(port.name)->copy_to(dense);
    if (!direct) {
      part.copy_(dense);
    }
  }

  /// The programs of a step of so many microbatches of all ranks.
  const CompiledStep& compiled_for(int64_t microbatches) {
    auto found = compiled_.find(microbatches);
    if (found == compiled_.end()) {
      const int64_t copies = mesh_shape(recipe_, recipe_.parallel.ranks()).dp;
      CompiledStep made(step_program(
          recipe_,
          host_,
          {.dtype = session_.dtype,
           .narrow = device_.narrow(),
           .scan = asks_for_scan(recipe_),
           .microbatches = microbatches / copies}
      ));
      for (size_t s = 0; s < made.stages.size(); ++s) {
        const StageProgram& stage = made.step.stages[s];
        for (const Module& module : stage.modules) {
          auto& program = programs_[{module.text, stage.ranks}];
          if (program == nullptr) {
            program = device_.compile(module.text, stage.ranks);
          }
          made.stages[s].programs.push_back(program.get());
        }
      }
      found = compiled_.emplace(microbatches, std::move(made)).first;
    }
    return found->second;
  }

  Begun begin_or_fail(const Request& request) {
    try {
      return begin(request);
    } catch (const Error&) { // told when that step's turn has come
      return {.number = request.number, .failed = std::current_exception()};
    }
  }

  /// The devices get a step's data, and begin with it.
  Begun begin(const Request& request) {
    const CompiledStep& compiled = compiled_for(std::ssize(request.microbatches));
    return of_step(request.number, [&] {
      if (buffers_.empty()) {
        upload(compiled.step);
      }
      const StepData given = step_data(
          device_, compiled.step, request.microbatches, request.options, request.weight_decay
      );
      fetched_ = false;
      StepRun(device_, compiled, given, buffers_).run();
      Begun begun{.compiled = &compiled, .number = request.number};
      for (const StepNumber& number : compiled.step.numbers()) { // a stage's ranks say the same
        auto& parts = begun.numbers.emplace_back();
        for (const size_t stage : number.stages) {
          const int64_t rank = compiled.step.stages[stage].ranks.front();
          parts.push_back(std::move(buffers_[index_of(rank)].at(number.port.name)));
        }
        for (BuffersByName& named : buffers_) {
          named.erase(number.port.name);
        }
      }
      return begun;
    });
  }

  StepResult read(const Begun& begun) const {
    const StepProgram& step = begun.compiled->step;
    const std::vector<StepNumber> numbers = step.numbers();
    StepResult made;
    for (size_t i = 0; i < numbers.size(); ++i) {
      const auto& [name, dtype, sizes, from] = numbers[i].port;
      double number = 0;
      for (const auto& part : begun.numbers[i]) {
        const Tensor value = at::empty(sizes, at::TensorOptions().dtype(dtype));
        part->copy_to(value);
        number += value.to(at::kDouble).item<double>();
      }
      if (name == "gradient_norm") {
        made.gradient_norm = number;
      } else {
        const std::string loss = name.substr(name.find('.') + 1);
        const bool main = std::ranges::find(step.main_losses, loss) != step.main_losses.end();
        made.losses.push_back({.name = loss, .value = number, .main = main});
      }
    }
    made.updated = made.finite();
    return made;
  }

  Tensor stored(const std::string& name) const {
    return weights_.stored()[places_.at(name)].data.detach();
  }

  std::unique_ptr<DeviceBuffer> zeros(const Port& port, size_t rank) const {
    return device_.upload(
        at::zeros(port.sizes, at::TensorOptions().dtype(port.dtype)), static_cast<int64_t>(rank)
    );
  }

  void upload(const StepProgram& step) {
    buffers_.resize(index_of(step.ranks()));
    for (const StageProgram& stage : step.stages) {
      for (size_t replica = 0; replica < stage.ranks.size(); ++replica) {
        const int64_t rank = stage.ranks[replica];
        BuffersByName& own = buffers_[index_of(rank)];
        for (size_t i = 0; i < stage.tensors.size(); ++i) {
          const Port& port = stage.tensors[i];
          const Tensor part = part_of(stored(port.name), stage.offsets[replica][i], port.sizes);
          own[port.name] = device_.upload(part.to(port.dtype), rank);
        }
        for (const Port& port : stage.carried) {
          own[port.name] = zeros(port, index_of(rank));
        }
      }
    }
  }

  Recipe recipe_;
  Session& session_;
  Weights& weights_;
  Host& host_;
  const ProgramDevice& device_;
  std::map<std::string, size_t> places_; // numbers of Weights::stored() by name
  /// By their texts and devices.
  std::map<std::pair<std::string, std::vector<int64_t>>, std::unique_ptr<ProgramDevice::Program>>
      programs_;
  std::map<int64_t, CompiledStep> compiled_; // by microbatches
  std::vector<BuffersByName> buffers_; // each rank's, from step to step; empty: the host's count
  std::optional<Begun> ahead_;         // the step after the one whose results were read last
  bool fetched_ = true;
};

} // namespace

std::unique_ptr<DeviceStep> program_step(
    const Recipe& recipe,
    Session& session,
    Weights& weights,
    Host& host,
    const ProgramDevice& device
) {
  return std::make_unique<ProgramStep>(recipe, session, weights, host, device);
}

} // namespace mh::program
