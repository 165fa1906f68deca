#include "core/nn/recompute.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

namespace mh {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Job : torch::CustomClassHolder {
  Computation run;
};

/// The first input is an empty tensor that requires a gradient, so that backward runs even where no
/// other input does.
struct Recompute : torch::autograd::Function<Recompute> {
  static variable_list
  forward(AutogradContext* ctx, at::TensorList inputs, const c10::intrusive_ptr<Job>& job) {
    ctx->save_for_backward(inputs.vec());
    ctx->saved_data["job"] =
        c10::IValue::make_capsule(c10::intrusive_ptr<torch::CustomClassHolder>(job));
    return job->run({inputs.begin() + 1, inputs.end()});
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto capsule = ctx->saved_data["job"].toCapsule();
    const auto* job = static_cast<const Job*>(capsule.get());
    const auto saved = ctx->get_saved_variables();
    variable_list inputs;
    for (size_t i = 1; i < saved.size(); ++i) {
      inputs.push_back(saved[i].detach());
      inputs.back().set_requires_grad(saved[i].requires_grad());
    }
    variable_list outputs;
    {
      const at::AutoGradMode enable(true);
      outputs = job->run(inputs);
    }
    variable_list roots;
    variable_list root_gradients;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].requires_grad() && gradients[i].defined()) {
        roots.push_back(outputs[i]);
        root_gradients.push_back(gradients[i]);
      }
    }
    torch::autograd::backward(roots, root_gradients);
    variable_list result(saved.size() + 1);
    for (size_t i = 0; i < inputs.size(); ++i) {
      result[i + 1] = inputs[i].grad();
    }
    return result;
  }
};

} // namespace

std::vector<at::Tensor> recomputed(const Computation& run, const std::vector<at::Tensor>& inputs) {
  if (!at::GradMode::is_enabled()) {
    return run(inputs);
  }
  auto job = c10::make_intrusive<Job>();
  job->run = run;
  variable_list all = {at::empty({0}, inputs.at(0).options().dtype(at::kFloat)).requires_grad_()};
  all.insert(all.end(), inputs.begin(), inputs.end());
  return Recompute::apply(at::TensorList(all), job); // a vector would not be seen as inputs
}

} // namespace mh
