#include "megahost/nn/router.hpp"

#include "core/kernels/gemm.hpp"
#include "core/kernels/row_ops.hpp"
#include "core/model/weight_queue.hpp"
#include "core/nn/router_parts.hpp"
#include "megahost/checking.hpp"
#include "megahost/saved.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace mh {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

at::ScalarType wide_type(const Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

Tensor wide_rows(const Tensor& x) {
  return x.reshape({-1, x.size(-1)}).to(wide_type(x));
}

/// x Wᵀ + b in float32, whatever the run's type; saves x as it is.
struct Logits : torch::autograd::Function<Logits> {
  struct Saved {
    Parameter* weight;
    Parameter* bias; // or null
    WeightQueue* queue;
  };

  static Tensor
  forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, const Saved& call) {
    ctx->save_for_backward({x, weight});
    save(ctx, call);
    Tensor y = ops::product(wide_rows(x), weight.to(wide_type(x)).t());
    return call.bias == nullptr ? y : y.add_(call.bias->value.detach());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto& call = get_saved<Saved>(ctx);
    const Tensor dy = gradients[0].contiguous();
    Tensor dx;
    if (ctx->needs_input_grad(0)) {
      dx = ops::product(dy, saved[1].to(dy.scalar_type())).to(saved[0].scalar_type());
      dx = dx.view(saved[0].sizes());
    }
    if (call.bias != nullptr) {
      call.bias->add_gradient([&](const Tensor& sum) { ops::add_row_sums_(sum, dy); });
    }
    const auto add = [dy, x = saved[0], parameter = call.weight] {
      parameter->add_gradient([&](const Tensor& sum) {
        ops::gemm_(sum, dy.t(), wide_rows(x), /*add=*/true);
      });
    };
    now_or_later(call.queue, add);
    return {dx, Tensor(), Tensor()};
  }
};

/// Scores outside of the best groups are -inf; a group is as good as the sum of its best experts.
Tensor within_groups(const RouterSpec& spec, const Tensor& scores) {
  if (spec.groups <= 1) {
    return scores;
  }
  const int64_t tokens = scores.size(0), size = spec.experts / spec.groups;
  const int64_t best = std::max<int64_t>(1, spec.chosen / spec.groups_chosen);
  const Tensor grouped = scores.view({tokens, spec.groups, size});
  const Tensor quality = std::get<0>(grouped.topk(best, -1)).sum(-1);
  const Tensor chosen = std::get<1>(quality.topk(spec.groups_chosen, -1));
  const Tensor out = at::ones_like(quality).scatter_(1, chosen, 0).to(at::kBool);
  return grouped.masked_fill(out.unsqueeze(2), kMinusInfinity).view({tokens, spec.experts});
}

} // namespace

std::pair<Routing, Tensor>
choose_experts(const RouterSpec& spec, const Tensor& logits, const Tensor& bias) {
  const bool sigmoid = spec.score == RouterScore::sigmoid;
  const Tensor shares = sigmoid ? logits.sigmoid() : logits.softmax(-1);
  const Tensor scores = spec.score == RouterScore::topk_softmax ? logits : shares;
  Tensor choices;
  {
    const at::NoGradGuard no_grad;
    const Tensor wanted = bias.defined() ? scores + bias : scores;
    choices = std::get<1>(within_groups(spec, wanted).topk(spec.chosen, -1));
  }
  Tensor weights = scores.gather(1, choices);
  if (spec.score == RouterScore::topk_softmax) {
    weights = weights.softmax(-1);
  } else if (spec.normalise && spec.chosen > 1) {
    weights = weights / (weights.sum(-1, /*keepdim=*/true) + 1e-20);
  }
  if (spec.scale != 1) {
    weights = weights * spec.scale;
  }
  const Tensor balanced = sigmoid ? shares / (shares.sum(-1, true) + 1e-20) : shares;
  return {{choices, weights}, balanced};
}

Router::Spread::Spread(const Placement& placed, const Placement& tokens, const Mesh& mesh) {
  for (const auto axis : {MeshAxis::tp, MeshAxis::cp, MeshAxis::dp}) {
    if (placed[axis] == Along{PlacementType::split, 1}) {
      batch.push_back(axis);
    }
    if (!(placed[axis] == Along{PlacementType::split, 0})) {
      continue;
    }
    seq.push_back(axis);
    ranks *= mesh.size(axis);
    if (tokens[axis].type == PlacementType::split) {
      summed *= mesh.size(axis);
    } else {
      partial[axis] = {PlacementType::partial, 0};
    }
  }
}

Tensor
Router::Spread::over(const std::vector<MeshAxis>& axes, const Tensor& sum, const Mesh& mesh) {
  Tensor all = axes.empty() ? sum : sum.clone(at::MemoryFormat::Contiguous);
  for (const auto axis : axes) {
    mesh.group(axis).all_reduce(all);
  }
  return all;
}

Router::Router(Builder& builder, const RouterSpec& spec)
    : spec_(spec)
    , name_(builder.global_name("")) {
  const Placement placed = builder.place(spec.embed);
  weight_ = &builder.parameter(
      {{"weight", {{{"router"}, spec.experts}, spec.embed}, Init::normal(spec.std)}}, placed
  );
  if (spec.logit_bias) {
    logit_bias_ =
        &builder.parameter({{"logit_bias", {{{"router"}, spec.experts}}, Init::zeros()}}, placed);
  }
  builder.flops.gemms +=
      2.0 * static_cast<double>(spec.experts * spec.embed.elements() * builder.seq());
  Tensor bias;
  if (spec.bias_rate) {
    const auto type = wide_type(weight_->value);
    bias = at::zeros({spec.experts}, builder.options().dtype(type));
    builder.buffer("bias", bias);
  }
  if (spec.bias_rate || spec.global) {
    const Spread spread(placed, builder.place(spec.embed, Tier::tokens), builder.mesh());
    history_ = std::make_shared<History>(bias, spec.bias_rate.value_or(0), spread.batch);
    builder.at_step_end(history_);
  }
}

Router::~Router() = default;
Router::Router(Router&&) noexcept = default;

Routing Router::route(const Tensor& x, StepContext& context) const {
  RECORD_USER_SCOPE("router");
  const Placement placed = context.place(spec_.embed);
  const Spread spread(placed, context.place(spec_.embed, Tier::tokens), context.mesh());
  const Tensor input = checked(x, placed, name_ + "weight", "input", context);
  const Tensor logits = Logits::apply(
      input, weight_->value, Logits::Saved{weight_, logit_bias_, context.mode().weight_queue}
  );
  auto [routing, scores] =
      choose_experts(spec_, logits, history_ == nullptr ? Tensor() : history_->bias());
  routing.choices = routing.choices.view({x.size(0), x.size(1), spec_.chosen});
  add_losses(logits, scores.view({x.size(0), x.size(1), spec_.experts}), routing, spread, context);
  routing.choices = routing.choices.view({-1, spec_.chosen});
  if (spec_.capacity && context.mode().kv_cache == nullptr) {
    limit(routing, spread, context);
  }
  return routing;
}

} // namespace mh
