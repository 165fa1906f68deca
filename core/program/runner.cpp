#include "core/program/runner.hpp"

#include "core/program/step_program.hpp"
#include "core/train/session.hpp"
#include "megahost/error.hpp"
#include "megahost/program_device.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <map>
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

class ProgramStep : public DeviceStep {
public:
  ProgramStep(Session& session, Weights& weights, Host& host, const ProgramDevice& device)
      : session_(session)
      , weights_(weights)
      , host_(host)
      , device_(device) {}

  StepResult run(std::span<const Batch> microbatches, const StepOptions& options) override {
    const Compiled& compiled = compiled_for(static_cast<int64_t>(microbatches.size()));
    if (tensors_.empty()) {
      upload();
    }
    auto values = step_arrays(microbatches, compiled.step);
    const auto number = [&](const char* name, double value) {
      values[name] = at::scalar_tensor(value, at::kDouble);
    };
    number("optimizer.lr", options.update.lr);
    number("optimizer.weight_decay", weights_.weight_decay());
    number("optimizer.step", options.update.step);
    std::vector<std::unique_ptr<DeviceBuffer>> others;
    std::vector<const DeviceBuffer*> arguments;
    for (const auto& tensor : tensors_) {
      arguments.push_back(tensor.get());
    }
    const auto& inputs = compiled.step.inputs;
    for (size_t i = compiled.step.tensors; i < inputs.size(); ++i) {
      others.push_back(device_.upload(values.at(inputs[i].name).to(inputs[i].dtype)));
      arguments.push_back(others.back().get());
    }
    auto results = compiled.program->run(arguments);
    fetched_ = false;
    StepResult made;
    for (size_t i = compiled.step.tensors; i < results.size(); ++i) {
      const Port& port = compiled.step.outputs[i];
      const Tensor value = at::empty(port.sizes, at::TensorOptions().dtype(port.dtype));
      results[i]->copy_to(value);
      const double read = value.to(at::kDouble).item<double>();
      if (port.name == "gradient_norm") {
        made.gradient_norm = read;
      } else {
        made.losses.push_back({.name = port.name.substr(port.name.find('.') + 1), .value = read});
      }
    }
    results.resize(compiled.step.tensors);
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
    for (size_t i = 0; i < tensors_.size(); ++i) {
      Tensor to = weights_.stored()[i].data;
      const Tensor dense =
          to.is_contiguous() ? to : at::empty_like(to, at::MemoryFormat::Contiguous);
      tensors_[i]->copy_to(dense);
      if (!to.is_contiguous()) {
        to.copy_(dense);
      }
    }
    weights_.publish();
    fetched_ = true;
  }

  void send() override { tensors_.clear(); }

  int64_t memory() const override {
    int64_t most = 0;
    for (const auto& [microbatches, compiled] : compiled_) {
      most = std::max(most, compiled.program->memory());
    }
    return most;
  }

private:
  const Compiled& compiled_for(int64_t microbatches) {
    auto found = compiled_.find(microbatches);
    if (found == compiled_.end()) {
      Compiled made;
      made.step = step_program(
          session_.recipe, host_, {.dtype = session_.dtype, .microbatches = microbatches}
      );
      made.program = device_.compile(made.step.module);
      found = compiled_.emplace(microbatches, std::move(made)).first;
    }
    return found->second;
  }

  void upload() {
    for (const auto& stored : weights_.stored()) {
      tensors_.push_back(device_.upload(stored.data.detach()));
    }
  }

  Session& session_;
  Weights& weights_;
  Host& host_;
  const ProgramDevice& device_;
  std::map<int64_t, Compiled> compiled_; // by microbatches
  std::vector<std::unique_ptr<DeviceBuffer>>
      tensors_; // tensors of a checkpoint; empty: the host's count
  bool fetched_ = true;
};

/// A feature of a recipe that programs do not support.
struct Unsupported {
  bool asked;
  std::string why, hint;
};

} // namespace

std::unique_ptr<DeviceStep> device_step(Session& session, Weights& weights, Host& host) {
  const ProgramDevice* device = session.device->as_program_device();
  if (device == nullptr) {
    return nullptr;
  }
  const Recipe& recipe = session.recipe;
  const Unsupported all[] = {
      {recipe.precision != "fp32" && recipe.precision != "bf16",
       "precision " + recipe.precision + " is in no program yet",
       "set precision to \"bf16\" or \"fp32\""},
      {session.mesh.world() > 1,
       "a run on it has one rank yet, and this one has " + std::to_string(session.mesh.world()),
       "set the degrees in `parallel` to 1; megahost program writes the module of all ranks"},
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
  return std::make_unique<ProgramStep>(session, weights, host, *device);
}

} // namespace mh::program
