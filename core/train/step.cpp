#include "core/train/step.hpp"

#include "core/train/batches.hpp"
#include "megahost/checking.hpp"
#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

namespace mh {
namespace {

void sum_over_tokens(const Mesh& mesh, at::Tensor tensor) {
  mesh.group(MeshAxis::dp).all_reduce(tensor);
  mesh.group(MeshAxis::cp).all_reduce(tensor);
}

/// Adds up each named loss over microbatches, on the device.
class LossSums {
public:
  void add(const std::vector<Loss>& losses, LossCounts& counts) {
    for (const auto& loss : losses) {
      const double count = counts.of(loss.over);
      const auto type = loss.sum.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
      const auto value = loss.sum.detach().to(type) * (count > 0 ? 1 / count : 0.0);
      auto known = std::find_if(sums_.begin(), sums_.end(), [&](const auto& sum) {
        return sum.name == loss.name;
      });
      if (known == sums_.end()) {
        sums_.push_back({loss.name, value, count});
      } else {
        known->mean = known->mean + value;
      }
    }
  }

  [[nodiscard]] std::vector<LossValue> values(const Mesh& mesh) const {
    std::vector<LossValue> values;
    for (const auto& sum : sums_) {
      const auto all = sum.mean.clone();
      sum_over_tokens(mesh, all);
      values.push_back({sum.name, all.item<double>(), sum.count});
    }
    return values;
  }

private:
  struct Sum {
    std::string name;
    at::Tensor mean; // this rank's share of it
    double count;
  };

  std::vector<Sum> sums_;
};

/// A microbatch between its forward and its backward pass. The context points to the batch.
struct InFlight {
  InFlight(const Passes& passes, const Batch& host)
      : batch(to_device(host, passes.device))
      , context(passes.mesh, passes.rules, batch) {
    context.checking = passes.checking;
  }

  Batch batch;
  StepContext context;
  at::Tensor total;
};

void require_losses(const StepContext& context) {
  if (context.losses().empty()) {
    throw Error(
        "the model adds no loss for this batch",
        "a corpus for training gives `labels` and `loss_mask` beside `tokens`",
        exit_code::data
    );
  }
}

/// What the backward pass starts from.
at::Tensor total_loss(const StepContext& context) {
  at::Tensor total;
  for (const auto& loss : context.losses()) {
    const auto part = loss.sum * *context.loss_factor(loss.over, loss.weight);
    total = total.defined() ? total + part : part;
  }
  return total;
}

} // namespace

double LossCounts::of(const std::string& over) {
  if (const auto known = counts_.find(over); known != counts_.end()) {
    return known->second;
  }
  double count = 0;
  for (const auto& batch : microbatches_) {
    if (over.empty()) {
      count += 1;
      continue;
    }
    const auto array = batch.arrays.find(over);
    if (array == batch.arrays.end()) {
      throw Error(
          "a loss is counted over array `" + over + "`, which the corpus does not give",
          "use a corpus that gives it",
          exit_code::data
      );
    }
    count += array->second.sum(at::kDouble).item<double>();
  }
  const auto all = at::tensor(count, at::kDouble);
  sum_over_tokens(mesh_, all);
  return counts_[over] = all.item<double>();
}

std::vector<Instruction> accumulation(int64_t microbatches) {
  std::vector<Instruction> list;
  for (int32_t m = 0; m < static_cast<int32_t>(microbatches); ++m) {
    list.push_back({Instruction::Op::forward, 0, m});
    list.push_back({Instruction::Op::backward, 0, m});
  }
  return list;
}

std::vector<LossValue> forward_backward(
    const Passes& passes,
    std::span<const Batch> microbatches,
    std::span<const Instruction> instructions,
    uint64_t seed,
    bool dropout,
    double loss_scale
) {
  LossCounts counts(passes.mesh, microbatches);
  LossSums sums;
  std::map<int32_t, std::unique_ptr<InFlight>> in_flight;
  for (const auto& [op, chunk, microbatch] : instructions) {
    auto& slot = in_flight[microbatch];
    if (op == Instruction::Op::forward && chunk == 0) {
      slot = std::make_unique<InFlight>(passes, microbatches[static_cast<size_t>(microbatch)]);
      auto& context = slot->context;
      context.training = dropout;
      context.seed = seed;
      context.microbatch = microbatch;
      context.loss_count = [&counts](const std::string& over) { return counts.of(over); };
      context.loss_scale = loss_scale;
      const State state = passes.model.forward(context);
      require_losses(context);
      slot->total = total_loss(context);
      sums.add(context.losses(), counts);
    } else if (op == Instruction::Op::backward && chunk == 0) {
      backward(slot->total);
      slot.reset();
    } else {
      throw Error(
          "the pipeline schedule has an instruction for another stage, but the model has one",
          "set parallel.pipeline = 1"
      );
    }
  }
  return sums.values(passes.mesh);
}

std::vector<LossValue> forward_only(const Passes& passes, std::span<const Batch> microbatches) {
  const at::NoGradGuard no_grad;
  LossCounts counts(passes.mesh, microbatches);
  LossSums sums;
  for (const auto& host : microbatches) {
    InFlight pass(passes, host);
    const State state = passes.model.forward(pass.context);
    require_losses(pass.context);
    sums.add(pass.context.losses(), counts);
  }
  return sums.values(passes.mesh);
}

double clip_factor(double norm, double clip) {
  return clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0;
}

bool StepResult::finite() const {
  return std::isfinite(gradient_norm) &&
         std::all_of(losses.begin(), losses.end(), [](const auto& loss) {
           return std::isfinite(loss.value);
         });
}

StepResult train_step(
    const Passes& passes,
    ParameterStore& parameters,
    Weights& weights,
    const Optimizer& optimizer,
    std::span<const Batch> microbatches,
    const StepOptions& options
) {
  StepResult result;
  const auto list = accumulation(static_cast<int64_t>(microbatches.size()));
  result.losses = forward_backward(
      passes, microbatches, list, options.seed, /*dropout=*/true, options.loss_scale
  );
  {
    RECORD_USER_SCOPE("gradient norm");
    parameters.reduce_gradients(passes.mesh);
    if (passes.checking) {
      check_parameters(parameters, passes.mesh);
    }
    const at::Tensor squared = parameters.squared_gradient_norm(passes.mesh);
    result.gradient_norm = std::sqrt(squared.item<double>()) / options.loss_scale;
  }
  if (options.accept ? !options.accept(result) : !result.finite()) {
    parameters.gradients().zero_();
    passes.model.forget_scales();
    return result;
  }
  if (options.count_zeros) {
    result.num_zeros = parameters.zero_gradients(passes.mesh).item<double>();
  }
  Update update = options.update;
  update.gradient_scale *= clip_factor(result.gradient_norm, options.clip) / options.loss_scale;
  RECORD_USER_SCOPE("optimizer");
  weights.update(optimizer, update);
  passes.model.update_scales(passes.mesh);
  result.updated = true;
  return result;
}

} // namespace mh
