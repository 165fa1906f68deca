#include "core/program/program_step.hpp"

#include "core/session/session.hpp"
#include "megahost/error.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <array>
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
/// Tensors in a device's memory by the names that modules call them.
using BuffersByName = std::map<std::string, std::unique_ptr<DeviceBuffer>>;

/// A step of so many microbatches, compiled.
struct Compiled {
  StepProgram step;
  std::vector<ProgramDevice::Program*> programs; ///< executables of its modules
};

/// A step that the devices have begun, and the numbers that they will have.
struct Begun {
  const Compiled* compiled = nullptr;
  int64_t number = 0;
  std::vector<std::unique_ptr<DeviceBuffer>> numbers{}; ///< in the order of StepProgram::numbers
  std::exception_ptr failed{};                          ///< it could not be begun
};

/// The part of a whole tensor that a rank holds.
Tensor part_of(Tensor whole, const std::vector<int64_t>& offset, at::IntArrayRef sizes) {
  for (size_t d = 0; d < sizes.size(); ++d) {
    whole = whole.narrow(static_cast<int64_t>(d), offset[d], sizes[d]);
  }
  return whole;
}

int64_t bytes_of(const Port& port) {
  return c10::multiply_integers(port.sizes) * static_cast<int64_t>(c10::elementSize(port.dtype));
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
    const StepProgram& step = compiled_.begin()->second.step; // all have the same tensors
    for (size_t i = 0; i < step.tensors.size(); ++i) {
      const Port& port = step.tensors[i];
      const Tensor whole = stored(port.name);
      std::set<std::vector<int64_t>> seen; // other ranks may hold the same piece
      for (size_t rank = 0; rank < buffers_.size(); ++rank) {
        const auto& offset = step.offsets[rank][i];
        if (!seen.insert(offset).second) {
          continue;
        }
        const Tensor part = part_of(whole, offset, port.sizes);
        const bool direct = part.is_contiguous() && part.scalar_type() == port.dtype;
        const Tensor dense =
            direct ? part : at::empty(port.sizes, part.options().dtype(port.dtype));
        buffers_[rank].at(port.name)->copy_to(dense);
        if (!direct) {
          part.copy_(dense);
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
      std::map<std::string, int64_t> held; // from step to step
      int64_t sum = 0;
      for (const auto* ports : {&compiled.step.tensors, &compiled.step.carried}) {
        for (const Port& port : *ports) {
          sum += held[port.name] = bytes_of(port);
        }
      }
      for (size_t i = 0; i < compiled.programs.size(); ++i) {
        int64_t own = compiled.programs[i]->memory();
        for (const Port& port : compiled.step.modules[i].inputs) {
          const auto found = held.find(port.name);
          own -= found == held.end() ? 0 : found->second;
        }
        most = std::max(most, sum + own);
      }
    }
    return most;
  }

private:
  /// The programs of a step of so many microbatches of all ranks.
  const Compiled& compiled_for(int64_t microbatches) {
    auto found = compiled_.find(microbatches);
    if (found == compiled_.end()) {
      const int64_t copies = mesh_shape(recipe_, recipe_.parallel.ranks()).dp;
      Compiled made;
      made.step = step_program(
          recipe_,
          host_,
          {.dtype = session_.dtype,
           .narrow = device_.narrow(),
           .scan = asks_for_scan(recipe_),
           .microbatches = microbatches / copies}
      );
      for (const Module& module : made.step.modules) {
        auto& program = programs_[module.text];
        if (program == nullptr) {
          program = device_.compile(module.text, made.step.ranks);
        }
        made.programs.push_back(program.get());
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
    const Compiled& compiled = compiled_for(std::ssize(request.microbatches));
    return of_step(request.number, [&] {
      const StepProgram& step = compiled.step;
      if (buffers_.empty()) {
        upload(step);
      }
      const std::vector<std::vector<BuffersByName>> given = data_of(request, step);
      fetched_ = false;
      for (size_t i = 0; i < step.modules.size(); ++i) {
        const int64_t times = step.modules[i].per_microbatch ? step.microbatches : 1;
        for (int64_t m = 0; m < times; ++m) {
          run_module(compiled, i, given, static_cast<size_t>(m));
        }
        forget_after(step, i);
      }
      Begun begun{.compiled = &compiled, .number = request.number};
      for (const Port& port : step.numbers()) { // all ranks say the same
        begun.numbers.push_back(std::move(buffers_.front().at(port.name)));
        for (BuffersByName& named : buffers_) {
          named.erase(port.name);
        }
      }
      return begun;
    });
  }

  /// A step's data and numbers, as far as modules read them, uploaded: [rank][microbatch].
  std::vector<std::vector<BuffersByName>> data_of(const Request& request, const StepProgram& step) {
    std::map<std::string, Port> asked;
    for (const Module& module : step.modules) {
      for (const Port& port : module.inputs) {
        asked.emplace(port.name, port);
      }
    }
    const auto numbers = step_numbers(request.options, request.weight_decay);
    std::vector<std::vector<BuffersByName>> given(buffers_.size());
    for (size_t rank = 0; rank < given.size(); ++rank) {
      const auto number = static_cast<int64_t>(rank);
      const auto add = [&](BuffersByName& named, const std::map<std::string, Tensor>& values) {
        for (const auto& [name, value] : values) {
          if (const auto port = asked.find(name); port != asked.end()) {
            named[name] = device_.upload(value.to(port->second.dtype), number);
          }
        }
      };
      for (const auto& inputs : microbatch_inputs(request.microbatches, step, number)) {
        add(given[rank].emplace_back(), inputs);
      }
      add(given[rank].front(), numbers);
      add(given[rank].front(), {{"rank", at::scalar_tensor(number, at::kInt)}});
    }
    return given;
  }

  void run_module(
      const Compiled& compiled,
      size_t number,
      const std::vector<std::vector<BuffersByName>>& given,
      size_t m
  ) {
    const Module& module = compiled.step.modules[number];
    std::vector<std::vector<const DeviceBuffer*>> arguments(buffers_.size());
    for (size_t rank = 0; rank < buffers_.size(); ++rank) {
      const std::array<const BuffersByName*, 3> places{
          &given[rank][m], &given[rank].front(), &buffers_[rank]};
      for (const Port& port : module.inputs) {
        for (const BuffersByName* named : places) {
          if (const auto found = named->find(port.name); found != named->end()) {
            arguments[rank].push_back(found->second.get());
            break;
          }
        }
      }
      MH_ASSERT(
          arguments[rank].size() == module.inputs.size(), module.name + " misses an argument"
      );
    }
    auto results = compiled.programs[number]->run(arguments);
    for (size_t rank = 0; rank < buffers_.size(); ++rank) {
      for (size_t i = 0; i < module.outputs.size(); ++i) {
        buffers_[rank][module.outputs[i].name] = std::move(results[rank][i]);
      }
    }
  }

  /// Frees what a module was the last to read.
  void forget_after(const StepProgram& step, size_t number) {
    std::set<std::string> read;
    for (size_t i = number + 1; i < step.modules.size(); ++i) {
      for (const Port& port : step.modules[i].inputs) {
        read.insert(port.name);
      }
    }
    for (const Port& port : step.modules.front().outputs) {
      const bool kept =
          std::ranges::find(step.carried, port.name, &Port::name) != step.carried.end() ||
          places_.contains(port.name) || read.contains(port.name);
      for (BuffersByName& named : buffers_) {
        if (!kept) {
          named.erase(port.name);
        }
      }
    }
  }

  StepResult read(const Begun& begun) const {
    const StepProgram& step = begun.compiled->step;
    const std::vector<Port> ports = step.numbers();
    StepResult made;
    for (size_t i = 0; i < ports.size(); ++i) {
      const Tensor value = at::empty(ports[i].sizes, at::TensorOptions().dtype(ports[i].dtype));
      begun.numbers[i]->copy_to(value);
      const double number = value.to(at::kDouble).item<double>();
      const std::string& name = ports[i].name;
      if (name == "gradient_norm") {
        made.gradient_norm = number;
      } else {
        made.losses.push_back(
            {.name = name.substr(name.find('.') + 1),
             .value = number,
             .main = made.losses.size() < step.main_losses}
        );
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
    buffers_.resize(static_cast<size_t>(step.ranks));
    for (size_t rank = 0; rank < buffers_.size(); ++rank) {
      for (size_t i = 0; i < step.tensors.size(); ++i) {
        const Port& port = step.tensors[i];
        const Tensor part = part_of(stored(port.name), step.offsets[rank][i], port.sizes);
        buffers_[rank][port.name] = device_.upload(part.to(port.dtype), static_cast<int64_t>(rank));
      }
      for (const Port& port : step.carried) {
        buffers_[rank][port.name] = zeros(port, rank);
      }
    }
  }

  Recipe recipe_;
  Session& session_;
  Weights& weights_;
  Host& host_;
  const ProgramDevice& device_;
  std::map<std::string, size_t> places_; // numbers of Weights::stored() by name
  std::map<std::string, std::unique_ptr<ProgramDevice::Program>> programs_; // by their texts
  std::map<int64_t, Compiled> compiled_;                                    // by microbatches
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
