#include "core/program/runner.hpp"

#include "core/program/step_program.hpp"
#include "core/session/session.hpp"
#include "megahost/error.hpp"
#include "megahost/program_device.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace mh::program {

namespace {

using at::Tensor;
using DeviceBuffer = ProgramDevice::Buffer;

/// A step of so many microbatches, compiled.
struct Compiled {
  StepProgram step;
  std::unique_ptr<ProgramDevice::Program> program;
};

/// The part of a whole tensor that a rank holds.
Tensor part_of(Tensor whole, const std::vector<int64_t>& offset, at::IntArrayRef sizes) {
  for (size_t d = 0; d < sizes.size(); ++d) {
    whole = whole.narrow(static_cast<int64_t>(d), offset[d], sizes[d]);
  }
  return whole;
}

class ProgramStep : public DeviceStep {
public:
  ProgramStep(
      Recipe recipe, Session& session, Weights& weights, Host& host, const ProgramDevice& device
  )
      : recipe_(std::move(recipe))
      , session_(session)
      , weights_(weights)
      , host_(host)
      , device_(device) {
    for (size_t i = 0; i < weights_.stored().size(); ++i) {
      places_[weights_.stored()[i].name] = i;
    }
  }

  StepResult run(std::span<const Batch> microbatches, const StepOptions& options) override {
    const Compiled& compiled = compiled_for(static_cast<int64_t>(microbatches.size()));
    const StepProgram& step = compiled.step;
    if (tensors_.empty()) {
      upload(step);
    }
    const auto numbers = step_numbers(microbatches, options, weights_.weight_decay());
    std::vector<std::vector<std::unique_ptr<DeviceBuffer>>> others(tensors_.size());
    std::vector<std::vector<const DeviceBuffer*>> arguments(tensors_.size());
    for (size_t rank = 0; rank < tensors_.size(); ++rank) {
      const auto number = static_cast<int64_t>(rank);
      auto values = step_arrays(microbatches, step, number);
      values.insert(numbers.begin(), numbers.end());
      values["rank"] = at::scalar_tensor(number, at::kInt);
      for (const auto& tensor : tensors_[rank]) {
        arguments[rank].push_back(tensor.get());
      }
      for (size_t i = step.tensors; i < step.inputs.size(); ++i) {
        const Tensor value = values.at(step.inputs[i].name).to(step.inputs[i].dtype);
        others[rank].push_back(device_.upload(value, number));
        arguments[rank].push_back(others[rank].back().get());
      }
    }
    auto results = compiled.program->run(arguments);
    fetched_ = false;
    StepResult made;
    for (size_t i = step.tensors; i < step.outputs.size(); ++i) { // all ranks say the same
      const Port& port = step.outputs[i];
      const Tensor value = at::empty(port.sizes, at::TensorOptions().dtype(port.dtype));
      results.front()[i]->copy_to(value);
      const double read = value.to(at::kDouble).item<double>();
      if (port.name == "gradient_norm") {
        made.gradient_norm = read;
      } else {
        made.losses.push_back(
            {.name = port.name.substr(port.name.find('.') + 1),
             .value = read,
             .main = made.losses.size() < step.main_losses}
        );
      }
    }
    for (auto& of_rank : results) {
      of_rank.resize(step.tensors);
    }
    tensors_ = std::move(results);
    made.updated = made.finite();
    if (options.accept) {
      (void)options.accept(made);
    }
    return made;
  }

  void fetch() override {
    if (fetched_ || tensors_.empty()) {
      return;
    }
    const at::NoGradGuard no_grad;
    const StepProgram& step = compiled_.begin()->second.step; // all have the same tensors
    for (size_t i = 0; i < step.tensors; ++i) {
      const Tensor whole = stored(step.inputs[i].name);
      std::set<std::vector<int64_t>> seen; // other ranks may hold the same piece
      for (size_t rank = 0; rank < tensors_.size(); ++rank) {
        const auto& offset = step.offsets[rank][i];
        if (!seen.insert(offset).second) {
          continue;
        }
        const Port& port = step.inputs[i];
        const Tensor part = part_of(whole, offset, port.sizes);
        const bool direct = part.is_contiguous() && part.scalar_type() == port.dtype;
        const Tensor dense =
            direct ? part : at::empty(port.sizes, part.options().dtype(port.dtype));
        tensors_[rank][i]->copy_to(dense);
        if (!direct) {
          part.copy_(dense);
        }
      }
    }
    weights_.publish();
    fetched_ = true;
  }

  void send() override { tensors_.clear(); }

  std::string note() const override {
    const int64_t ranks = recipe_.parallel.ranks();
    return ranks == 1 ? ""
                      : "steps run on " + std::to_string(ranks) +
                            " devices, the ranks of `parallel`; this process holds whole tensors";
  }

  int64_t memory() const override {
    int64_t most = 0;
    for (const auto& [microbatches, compiled] : compiled_) {
      most = std::max(most, compiled.program->memory());
    }
    return most;
  }

private:
  /// The program of a step of so many microbatches of all ranks.
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
           .microbatches = microbatches / copies}
      );
      made.program = device_.compile(made.step.module, made.step.ranks);
      found = compiled_.emplace(microbatches, std::move(made)).first;
    }
    return found->second;
  }

  Tensor stored(const std::string& name) const {
    return weights_.stored()[places_.at(name)].data.detach();
  }

  void upload(const StepProgram& step) {
    tensors_.resize(static_cast<size_t>(step.ranks));
    for (size_t rank = 0; rank < tensors_.size(); ++rank) {
      for (size_t i = 0; i < step.tensors; ++i) {
        const Port& port = step.inputs[i];
        const Tensor part = part_of(stored(port.name), step.offsets[rank][i], port.sizes);
        tensors_[rank].push_back(device_.upload(part.to(port.dtype), static_cast<int64_t>(rank)));
      }
    }
  }

  Recipe recipe_;
  Session& session_;
  Weights& weights_;
  Host& host_;
  const ProgramDevice& device_;
  std::map<std::string, size_t> places_; // numbers of Weights::stored() by name
  std::map<int64_t, Compiled> compiled_; // by microbatches
  std::vector<std::vector<std::unique_ptr<DeviceBuffer>>>
      tensors_; // each rank's pieces of a checkpoint's tensors; empty: the host's count
  bool fetched_ = true;
};

/// A feature of a recipe that programs do not support.
struct Unsupported {
  bool asked;
  std::string why, hint;
};

} // namespace

bool ranks_are_devices(const Recipe& recipe, Host& host) {
  if (!host.require(Kind::device, recipe.device.use).planned.in_host_memory()) {
    return false; // it has operators
  }
  const auto device = host.make<Device>(recipe.device, {.local_rank = 0});
  const ProgramDevice* programs = device->as_program_device();
  if (programs == nullptr) {
    return false;
  }
  const int64_t ranks = recipe.parallel.ranks();
  if (programs->count() < ranks) {
    throw Error(
        "this layout needs " + std::to_string(ranks) + " devices, and device \"" +
            recipe.device.use + "\" has " + std::to_string(programs->count()),
        "lower the degrees in `parallel`, or give it more by device.options"
    );
  }
  return true;
}

void compile_steps(
    const Recipe& recipe,
    Host& host,
    const StepProgramOptions& options,
    const std::function<void(int64_t microbatches, double seconds)>& compiled
) {
  const auto device = host.make<Device>(recipe.device, {.local_rank = 0});
  const ProgramDevice* programs = device->as_program_device();
  if (programs == nullptr) {
    throw Error(
        "device \"" + recipe.device.use + "\" compiles no programs",
        "set device.use to one that does (docs/xla.md)"
    );
  }
  const int64_t copies = mesh_shape(recipe, recipe.parallel.ranks()).dp;
  for (const int64_t samples : batch_sizes(recipe.batch)) {
    StepProgramOptions of_batch = options;
    of_batch.narrow = programs->narrow();
    of_batch.microbatches = samples / (recipe.batch.micro * copies);
    const StepProgram step = step_program(recipe, host, of_batch);
    const auto begin = std::chrono::steady_clock::now();
    (void)programs->compile(step.module, step.ranks);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    compiled(*of_batch.microbatches, taken.count());
  }
}

Recipe one_rank(Recipe recipe) {
  auto& parallel = recipe.parallel;
  parallel.tensor = parallel.pipeline = parallel.context = 1;
  parallel.expert = parallel.expert_tensor = parallel.virtual_stages = 1;
  parallel.data = int64_t{1};
  parallel.sequence = false;
  parallel.zero = 0;
  return recipe;
}

std::unique_ptr<DeviceStep>
device_step(const Recipe& recipe, Session& session, Weights& weights, Host& host) {
  const ProgramDevice* device = session.device->as_program_device();
  if (device == nullptr) {
    return nullptr;
  }
  const Unsupported all[] = {
      {recipe.precision != "fp32" && recipe.precision != "bf16",
       "precision " + recipe.precision + " is in no program yet",
       "set precision to \"bf16\" or \"fp32\""},
      {session.mesh.world() > 1,
       "one process drives all its devices, and this run has " +
           std::to_string(session.mesh.world()) + " processes",
       "start it without --nproc: the degrees in `parallel` are those of its devices"},
      {recipe.guards.spike != "off",
       "guards.spike needs a step's loss before its update, and the program does both",
       "set guards.spike to \"off\""},
      {recipe.log.num_zeros,
       "log.num_zeros counts among gradients that no program hands out",
       "set log.num_zeros to false"},
  };
  for (const Unsupported& one : all) {
    if (one.asked) {
      throw Error(
          "device \"" + recipe.device.use + "\" runs the step as one program: " + one.why, one.hint
      );
    }
  }
  return std::make_unique<ProgramStep>(recipe, session, weights, host, *device);
}

} // namespace mh::program
