#include "megahost/model.hpp"

#include "core/nn/recompute.hpp"
#include "megahost/error.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>

#include <span>

namespace mh {

namespace {

using Blocks = std::span<const std::unique_ptr<Block>>;

/// Runs block `i`, which profiles name as its parameters.
State forward_block(Blocks all, size_t i, const State& state, StepContext& context) {
  at::RecordFunction scope(at::RecordScope::USER_SCOPE);
  if (scope.isActive()) {
    const std::string name = i == 0                ? "embedding"
                             : i + 1 == all.size() ? "head"
                                                   : "layers." + std::to_string(i - 1);
    scope.before(name);
  }
  return all[i]->forward(state, context);
}

/// Runs blocks [begin, end) keeping only the first one's input. Losses that they add come out of
/// the recomputed part with the state, since only what it returns carries gradients.
State recomputed_blocks(
    Blocks all, size_t begin, size_t end, const State& state, StepContext& context
) {
  std::vector<at::Tensor> inputs;
  for (const auto& [name, activation] : state) {
    inputs.push_back(activation.value);
  }
  auto shape = std::make_shared<State>(); // names and dimensions of the result
  auto losses = std::make_shared<std::vector<Loss>>();
  const StepContext inner = context; // read again in backward
  const auto results = recomputed(
      [all, begin, end, state, inner, shape, losses](const auto& values) {
        StepContext copy = inner;
        (void)copy.take_losses();
        copy.keep = nullptr;
        State output = state;
        size_t i = 0;
        for (const auto& [name, activation] : state) {
          output.set(name, values[i++], activation.dims);
        }
        for (size_t block = begin; block < end; ++block) {
          output = forward_block(all, block, output, copy);
        }
        const auto added = copy.take_losses();
        std::vector<at::Tensor> outputs;
        for (const auto& [name, activation] : output) {
          outputs.push_back(activation.value);
        }
        for (const auto& loss : added) {
          outputs.push_back(loss.sum);
        }
        if (!at::GradMode::is_enabled()) { // the first run, not the one in backward
          *shape = output;
          *losses = added;
        }
        return outputs;
      },
      inputs
  );
  State output = *shape;
  size_t i = 0;
  for (const auto& [name, activation] : *shape) {
    output.set(name, results[i++], activation.dims);
  }
  for (auto loss : *losses) {
    loss.sum = results[i++];
    context.add_loss(std::move(loss));
  }
  *shape = State();
  losses->clear();
  return output;
}

} // namespace

Model::Model(
    const Architecture& architecture, const Builder::Args& args, const RecomputePolicy* policy
)
    : store_(std::make_unique<ParameterStore>()) {
  Builder builder(*store_, args);
  {
    const auto scope = builder.scope("embedding");
    blocks_.push_back(architecture.embedding(builder));
  }
  keep_.emplace_back();
  for (int64_t i = 0; i < architecture.layers(); ++i) {
    const auto scope = builder.scope("layers." + std::to_string(i));
    blocks_.push_back(architecture.layer(i, builder));
    keep_.push_back(policy == nullptr ? Keep{} : policy->keep(i));
  }
  const auto scope = builder.scope("head");
  blocks_.push_back(architecture.head(builder));
  keep_.emplace_back();
  flops_ = builder.flops;
}

Model::~Model() = default;
Model::Model(Model&&) noexcept = default;

State Model::forward(StepContext& context) const {
  State state;
  for (size_t i = 0; i < blocks_.size();) {
    if (keep_[i].everything) {
      context.keep = &keep_[i];
      state = forward_block(blocks_, i++, state, context);
      context.keep = nullptr;
      continue;
    }
    size_t end = i + 1;
    while (end < blocks_.size() && keep_[end].joined) {
      ++end;
    }
    state = recomputed_blocks(blocks_, i, end, state, context);
    i = end;
  }
  return state;
}

Block::~Block() = default;
Architecture::~Architecture() = default;

void backward(const at::Tensor& scalar) {
  torch::autograd::backward({scalar}, {});
}

} // namespace mh
