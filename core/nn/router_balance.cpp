// The methods that keep experts evenly busy: losses, and a bias that moves once a step.

#include "core/nn/router_parts.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <string>

namespace mh {

using at::Tensor;

Tensor count_choices(const Tensor& choices, int64_t experts, at::ScalarType type) {
  const Tensor ones = at::ones_like(choices, choices.options().dtype(type));
  auto sizes = choices.sizes().vec();
  sizes.back() = experts;
  return at::zeros(sizes, ones.options()).scatter_add_(-1, choices, ones); // [..., experts]
}

Tensor
balance_loss(const Tensor& scores, const Tensor& counts, int64_t chosen, double tokens, double of) {
  const auto experts = static_cast<double>(scores.size(-1));
  return (scores * counts).sum(-1) * (experts / (static_cast<double>(chosen) * tokens * of));
}

Tensor Router::History::mean(int64_t microbatch) const {
  Tensor sum;
  double number = 0;
  for (const auto& [index, counts] : counts_) {
    if (index <= microbatch) {
      sum = sum.defined() ? sum + counts.wanted : counts.wanted;
      number += 1;
    }
  }
  return sum / number;
}

void Router::History::update(const Mesh& mesh) {
  const at::NoGradGuard no_grad;
  if (bias_.defined() && !counts_.empty()) {
    Tensor sum = at::zeros_like(bias_);
    for (const auto& [index, counts] : counts_) {
      sum.add_(counts.busy);
    }
    for (const auto axis : axes_) {
      mesh.group(axis).all_reduce(sum);
    }
    bias_.add_((sum.mean() - sum).sign_(), rate_);
  }
  counts_.clear();
}

void Router::add_losses(
    const Tensor& logits,
    const Tensor& scores,
    const Routing& routing,
    const Spread& spread,
    StepContext& context
) const {
  const Mesh& mesh = context.mesh();
  const double layers = static_cast<double>(spec_.layers);
  const int64_t batch = scores.size(1);
  const auto length = static_cast<double>(scores.size(0) * spread.ranks); // tokens of a sample
  const double tokens = length * static_cast<double>(batch);
  const Tensor of_samples = add_counts(scores, routing, spread, context); // [batch, experts]
  const Tensor counts = of_samples.sum(0);
  const auto add = [&](const char* name, const Tensor& own, double weight) {
    const Tensor sum = spread.total(own, mesh);
    context.add_loss({name, sum / layers, "", weight * layers});
    if (context.mode().loss_count) {
      std::string file_name = name_ + name;
      std::replace(file_name.begin(), file_name.end(), ' ', '_');
      const Tensor mean = sum.detach() / context.mode().loss_count("");
      context.add_loss({file_name, mean.unsqueeze(0), "", /*weight=*/0});
    }
  };
  const auto sums = [&] { return scores.sum(at::IntArrayRef{0, 1}); };
  if (spec_.auxiliary) {
    add("load balancing loss",
        balance_loss(sums(), counts, spec_.chosen, tokens, tokens),
        spec_.balance_weight);
  }
  if (spec_.sequence) {
    const Tensor each = balance_loss(scores.sum(0), of_samples, spec_.chosen, length, length);
    add("sequence load balancing loss",
        each.sum() / static_cast<double>(batch),
        spec_.balance_weight);
  }
  if (spec_.global) {
    const Tensor seen = context.mode().loss_count ? history_->mean(context.mode().microbatch)
                                                  : counts; // counts of this data rank
    double all = tokens;
    for (const auto axis : spread.batch) {
      all *= static_cast<double>(mesh.size(axis));
    }
    const Tensor everywhere = Spread::over(spread.batch, seen, mesh);
    add("global load balancing loss",
        balance_loss(sums(), everywhere, spec_.chosen, tokens, all),
        spec_.balance_weight);
  }
  if (spec_.z_weight > 0) {
    const Tensor top = logits.detach().amax(-1, /*keepdim=*/true);
    const Tensor lse = (logits - top).exp().sum(-1).log() + top.squeeze(-1);
    add("z loss", lse.square().sum() / tokens, spec_.z_weight);
  }
}

Tensor Router::add_counts(
    const Tensor& scores, const Routing& routing, const Spread& spread, StepContext& context
) const {
  const at::NoGradGuard no_grad;
  const Tensor sound = scores.sum().mul_(0); // NaN, as counts of choices that mean nothing then are
  const auto in_samples = [&](const Tensor& choices) {
    const Tensor own = count_choices(choices, spec_.experts, scores.scalar_type()).sum(0) + sound;
    return Spread::over(spread.seq, own, context.mesh()); // [batch, experts]
  };
  const Tensor busy = in_samples(routing.choices);
  // Losses count a token's best experts by their scores, whatever bias and groups make of them.
  const bool steered = spec_.groups > 1 || spec_.bias_rate;
  const bool counted = spec_.auxiliary || spec_.sequence || spec_.global;
  const Tensor wanted =
      steered && counted ? in_samples(std::get<1>(scores.topk(spec_.chosen, -1))) : busy;
  const Tensor counts = busy.sum(0);
  const auto sharing = static_cast<double>(spread.summed);
  if (context.mode().loss_count) {
    context.add_loss({name_ + kTokensPerExpert, counts / sharing, "", /*weight=*/0});
    if (history_ != nullptr) {
      history_->keep(context.mode().microbatch, counts, wanted.sum(0));
    }
  }
  const Tensor busiest = counts.amax() / counts.mean();
  context.add_loss(
      {"expert imbalance", busiest / (static_cast<double>(spec_.layers) * sharing), "", 0}
  );
  return wanted;
}

} // namespace mh
