#include "core/model/recompute.hpp"

#include "core/model/storage_memory.hpp"
#include "megahost/saved.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace mh {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A computation that runs a second time, once.
struct SecondRun {
  Computation run;
  variable_list inputs;  // detached
  variable_list outputs; // outputs of the second run

  void again() {
    const at::AutoGradMode enable(true);
    outputs = run(inputs);
  }
};

/// The first input is an empty tensor that requires a gradient, so that backward runs even where no
/// other input does.
struct Recompute : torch::autograd::Function<Recompute> {
  struct Saved {
    std::shared_ptr<SecondRun> job;
  };

  static variable_list
  forward(AutogradContext* ctx, at::TensorList inputs, const std::shared_ptr<SecondRun>& job) {
    save(ctx, Saved{job});
    return job->run({inputs.begin() + 1, inputs.end()});
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto& job = get_saved<Saved>(ctx).job;
    if (job->outputs.empty()) {
      job->again();
    }
    const auto inputs = std::exchange(job->inputs, {});
    const auto outputs = std::exchange(job->outputs, {});
    variable_list roots;
    variable_list root_gradients;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].requires_grad() && gradients[i].defined()) {
        roots.push_back(outputs[i]);
        root_gradients.push_back(gradients[i]);
      }
    }
    torch::autograd::backward(roots, root_gradients);
    variable_list result(inputs.size() + 2);
    for (size_t i = 0; i < inputs.size(); ++i) {
      result[i + 1] = inputs[i].grad();
    }
    return result;
  }
};

std::shared_ptr<SecondRun> make_job(const Computation& run, const variable_list& inputs) {
  auto job = std::make_shared<SecondRun>();
  job->run = run;
  for (const auto& input : inputs) {
    job->inputs.push_back(input.detach().set_requires_grad(input.requires_grad()));
  }
  return job;
}

variable_list first_run(const std::shared_ptr<SecondRun>& job, const variable_list& inputs) {
  variable_list all = {at::empty({0}, inputs.at(0).options().dtype(at::kFloat)).requires_grad_()};
  all.insert(all.end(), inputs.begin(), inputs.end());
  return Recompute::apply(at::TensorList(all), job); // a vector would not be seen as inputs
}

} // namespace

std::vector<at::Tensor> recomputed(const Computation& run, const std::vector<at::Tensor>& inputs) {
  return at::GradMode::is_enabled() ? first_run(make_job(run, inputs), inputs) : run(inputs);
}

std::vector<at::Tensor> kept_inputs(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> nodes = inputs;
  for (at::Tensor& x : nodes) {
    if (at::GradMode::is_enabled() && x.requires_grad()) {
      x = at::alias(x);
    }
  }
  return nodes;
}

at::Tensor recomputed_for(
    const std::function<at::Tensor(const std::vector<at::Tensor>&)>& run,
    const std::vector<at::Tensor>& inputs,
    const std::function<at::Tensor(const at::Tensor&)>& reader
) {
  if (!at::GradMode::is_enabled()) {
    return reader(run(inputs));
  }
  const auto job = make_job([run](const auto& again) { return variable_list{run(again)}; }, inputs);
  const at::Tensor read = first_run(job, inputs)[0];
  at::Tensor result = reader(read);
  const auto storage = read.storage();
  const auto is_read = [&](const at::Tensor& x) { return x.storage().is_alias_of(storage); };
  if (!result.requires_grad() || is_read(result) ||
      std::any_of(inputs.begin(), inputs.end(), is_read)) {
    return result; // another tensor needs the memory
  }
  free_memory(storage);
  result.register_hook([job, storage](const at::Tensor&) {
    job->again();
    share_memory(storage, job->outputs[0].storage());
  });
  return result;
}

} // namespace mh
