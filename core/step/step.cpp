#include "core/step/step.hpp"

#include "core/step/pipeline.hpp"
#include "megahost/checking.hpp"
#include "megahost/error.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace mh {

namespace {

/// Forward and backward of each microbatch in turn: the schedule of a single stage.
std::vector<Instruction> accumulation(int64_t microbatches) {
  std::vector<Instruction> list;
  for (int32_t m = 0; m < static_cast<int32_t>(microbatches); ++m) {
    list.push_back({Instruction::Op::forward, 0, m});
    list.push_back({Instruction::Op::backward, 0, m});
  }
  return list;
}

} // namespace

std::vector<Instruction>
training_instructions(const Passes& passes, std::span<const Batch> microbatches) {
  const auto count = static_cast<int64_t>(microbatches.size());
  const auto stage = static_cast<size_t>(passes.mesh.coordinate(MeshAxis::pp));
  return passes.pipeline == nullptr ? accumulation(count) : passes.pipeline->training(count)[stage];
}

std::vector<LossValue> forward_backward(
    const Passes& passes,
    std::span<const Batch> microbatches,
    uint64_t seed,
    bool dropout,
    double loss_scale
) {
  const ExecuteOptions options{.seed = seed, .dropout = dropout, .loss_scale = loss_scale};
  return execute(passes, microbatches, training_instructions(passes, microbatches), options)
      .read(passes.mesh)
      .losses;
}

std::vector<LossValue> forward_only(const Passes& passes, std::span<const Batch> microbatches) {
  const at::NoGradGuard no_grad;
  const auto count = static_cast<int64_t>(microbatches.size());
  const auto stage = static_cast<size_t>(passes.mesh.coordinate(MeshAxis::pp));
  auto list =
      passes.pipeline == nullptr ? accumulation(count) : passes.pipeline->evaluation(count)[stage];
  std::erase_if(list, [](const auto& one) { return one.op == Instruction::Op::backward; });
  return execute(passes, microbatches, list, {}).read(passes.mesh).losses;
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
    Weights& weights,
    const Optimizer& optimizer,
    std::span<const Batch> microbatches,
    const StepOptions& options
) {
  StepResult result;
  MH_ASSERT(passes.gradients != nullptr, "a training step needs gradients");
  auto& gradients = *passes.gradients;
  gradients.checking = passes.checking;
  gradients.begin(static_cast<int64_t>(microbatches.size()));
  const LossSums sums = execute(
      passes,
      microbatches,
      training_instructions(passes, microbatches),
      {.seed = options.seed, .dropout = true, .loss_scale = options.loss_scale, .metrics = true}
  );
  {
    RECORD_USER_SCOPE("gradient norm");
    gradients.finish();
    if (passes.checking && gradients.zero() == 0) {
      check_parameters(passes.model.parameters(), passes.mesh);
    }
    auto numbers = sums.read(passes.mesh, gradients.squared_norm());
    result.losses = std::move(numbers.losses);
    result.metrics = std::move(numbers.metrics);
    result.own_losses = sums.own();
    result.gradient_norm = std::sqrt(numbers.more) / options.loss_scale;
  }
  if (options.accept ? !options.accept(result) : !result.finite()) {
    gradients.clear();
    passes.model.forget_step();
    return result;
  }
  if (options.count_zeros) {
    result.num_zeros = number_of(gradients.zeros());
  }
  Update update = options.update;
  update.gradient_scale *= clip_factor(result.gradient_norm, options.clip) / options.loss_scale;
  RECORD_USER_SCOPE("optimizer");
  weights.update(optimizer, update);
  gradients.share_parameters();
  passes.model.end_step(passes.mesh);
  result.updated = true;
  return result;
}

} // namespace mh
