#include "megahost/nn/router.hpp"

#include "core/kernels/gemm.hpp"
#include "core/nn/weight_queue.hpp"
#include "megahost/checking.hpp"
#include "megahost/error.hpp"
#include "megahost/step_state.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
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

/// x Wᵀ in float32, whatever the run's type; saves x as it is.
struct Logits : torch::autograd::Function<Logits> {
  static Tensor forward(
      AutogradContext* ctx, const Tensor& x, const Tensor& weight, int64_t parameter, int64_t queue
  ) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["parameter"] = parameter;
    ctx->saved_data["queue"] = queue;
    return ops::product(wide_rows(x), weight.to(wide_type(x)).t());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    auto* parameter = reinterpret_cast<Parameter*>(ctx->saved_data["parameter"].toInt());
    auto* queue = reinterpret_cast<WeightQueue*>(ctx->saved_data["queue"].toInt());
    const Tensor dy = gradients[0].contiguous();
    Tensor dx;
    if (ctx->needs_input_grad(0)) {
      dx = ops::product(dy, saved[1].to(dy.scalar_type())).to(saved[0].scalar_type());
      dx = dx.view(saved[0].sizes());
    }
    const auto add = [dy, x = saved[0], parameter] {
      parameter->add_gradient([&](const Tensor& sum) {
        ops::gemm_(sum, dy.t(), wide_rows(x), /*add=*/true);
      });
    };
    now_or_later(queue, add);
    return {dx, Tensor(), Tensor(), Tensor()};
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

/// How many times each expert was chosen: like choices, without its last two dimensions' tokens.
Tensor count_choices(const Tensor& choices, int64_t experts, at::ScalarType type) {
  const Tensor ones = at::ones_like(choices, choices.options().dtype(type));
  auto sizes = choices.sizes().vec();
  sizes.back() = experts;
  return at::zeros(sizes, ones.options()).scatter_add_(-1, choices, ones); // [..., experts]
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

Tensor
balance_loss(const Tensor& scores, const Tensor& counts, int64_t chosen, double tokens, double of) {
  const auto experts = static_cast<double>(scores.size(-1));
  return (scores * counts).sum(-1) * (experts / (static_cast<double>(chosen) * tokens * of));
}

Tensor kept_choices(const Routing& routing, int64_t experts, int64_t capacity, bool by_position) {
  const at::NoGradGuard no_grad;
  const Tensor& choices = routing.choices;
  const int64_t tokens = choices.size(0);
  if (capacity >= tokens) {
    return at::ones_like(choices, choices.options().dtype(at::kBool));
  }
  const auto table = [&](const Tensor& values) {
    return at::zeros({tokens, experts}, values.options()).scatter_(1, choices, values);
  };
  Tensor kept;
  if (by_position) {
    kept = table(at::ones_like(choices)).cumsum(0).le(capacity);
  } else {
    const Tensor order =
        std::get<1>(table(routing.weights.detach()).sort(/*stable=*/true, 0, /*descending=*/true));
    const Tensor first = order.narrow(0, 0, capacity);
    kept = at::zeros({tokens, experts}, choices.options().dtype(at::kBool));
    kept.scatter_(0, first, at::ones_like(first, kept.options()));
  }
  return kept.gather(1, choices);
}

/// The counts of a step's microbatches, the bias that follows from them, and running means.
class Router::History : public StepState {
public:
  History(Tensor bias, double rate, std::vector<MeshAxis> axes)
      : bias_(std::move(bias))
      , rate_(rate)
      , axes_(std::move(axes)) {}

  [[nodiscard]] const Tensor& bias() const { return bias_; }

  /// A microbatch that comes again says the same.
  void keep(int64_t microbatch, const Tensor& counts) { counts_[microbatch] = counts; }

  /// The mean over the microbatches up to this one.
  [[nodiscard]] Tensor mean(int64_t microbatch) const {
    Tensor sum;
    double number = 0;
    for (const auto& [index, counts] : counts_) {
      if (index <= microbatch) {
        sum = sum.defined() ? sum + counts : counts;
        number += 1;
      }
    }
    return sum / number;
  }

  void update(const Mesh& mesh) override {
    const at::NoGradGuard no_grad;
    if (bias_.defined() && !counts_.empty()) {
      Tensor sum = at::zeros_like(bias_);
      for (const auto& [index, counts] : counts_) {
        sum.add_(counts);
      }
      for (const auto axis : axes_) {
        mesh.group(axis).all_reduce(sum);
      }
      bias_.add_((sum.mean() - sum).sign_(), rate_);
    }
    counts_.clear();
  }

  void forget() override { counts_.clear(); }

private:
  Tensor bias_; // undefined: no bias
  double rate_;
  std::vector<MeshAxis> axes_; // that split samples
  std::map<int64_t, Tensor> counts_;
};

/// How the tokens of a microbatch lie over ranks, and what is a sum over some of them.
struct Router::Spread {
  std::vector<MeshAxis> seq;   // axes that cut samples, inner ones first
  std::vector<MeshAxis> batch; // axes that deal samples out
  Placement partial, whole;    // of sums over axes that the trainer does not sum over
  int64_t ranks = 1;           // that share a microbatch
  int64_t summed = 1;          // of them, those that the trainer sums over

  Spread(const Placement& placed, const Placement& tokens, const Mesh& mesh) {
    for (const auto axis : {MeshAxis::tp, MeshAxis::cp, MeshAxis::dp}) {
      if (placed[axis] == Along{Type::split, 1}) {
        batch.push_back(axis);
      }
      if (!(placed[axis] == Along{Type::split, 0})) {
        continue;
      }
      seq.push_back(axis);
      ranks *= mesh.size(axis);
      if (tokens[axis].type == Type::split) {
        summed *= mesh.size(axis);
      } else {
        partial[axis] = {Type::partial, 0};
      }
    }
  }

  /// A sum over this rank's tokens becomes one over those that the trainer does not sum over.
  [[nodiscard]] Tensor total(const Tensor& sum, const Mesh& mesh) const {
    return convert(sum, partial, whole, mesh);
  }

  [[nodiscard]] static Tensor
  over(const std::vector<MeshAxis>& axes, const Tensor& sum, const Mesh& mesh) {
    Tensor all = axes.empty() ? sum : sum.clone(at::MemoryFormat::Contiguous);
    for (const auto axis : axes) {
      mesh.group(axis).all_reduce(all);
    }
    return all;
  }
};

Router::Router(Builder& builder, const RouterSpec& spec)
    : spec_(spec)
    , name_(builder.global_name("")) {
  const Placement placed = builder.place(spec.embed);
  weight_ = &builder.parameter(
      {{"weight", {{{"router"}, spec.experts}, spec.embed}, Init::normal(spec.std)}}, placed
  );
  builder.flops.products += 2.0 * static_cast<double>(spec.experts * spec.embed.elements());
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
      input,
      weight_->value,
      reinterpret_cast<int64_t>(weight_),
      reinterpret_cast<int64_t>(context.weight_queue)
  );
  auto [routing, scores] =
      choose_experts(spec_, logits, history_ == nullptr ? Tensor() : history_->bias());
  routing.choices = routing.choices.view({x.size(0), x.size(1), spec_.chosen});
  add_losses(logits, scores.view({x.size(0), x.size(1), spec_.experts}), routing, spread, context);
  routing.choices = routing.choices.view({-1, spec_.chosen});
  if (spec_.capacity && context.kv_cache == nullptr) {
    limit(routing, spread, context);
  }
  return routing;
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
  const auto length = static_cast<double>(scores.size(0) * spread.ranks); // of a sample
  const double tokens = length * static_cast<double>(batch);
  Tensor of_samples, counts;
  {
    const at::NoGradGuard no_grad;
    const Tensor own = count_choices(routing.choices, spec_.experts, scores.scalar_type()).sum(0);
    of_samples = Spread::over(spread.seq, own, mesh); // [batch, experts]
    counts = of_samples.sum(0);
    if (context.loss_count) {
      const Tensor tally = counts / static_cast<double>(spread.summed);
      context.add_loss({name_ + "tokens_per_expert", tally, "", /*weight=*/0});
    }
    const Tensor busiest = counts.amax() / counts.mean();
    context.add_loss(
        {"expert imbalance", busiest / (layers * static_cast<double>(spread.summed)), "", 0}
    );
  }
  const auto add = [&](const char* name, const Tensor& own, double weight) {
    const Tensor sum = spread.total(own, mesh);
    context.add_loss({name, sum / layers, "", weight * layers});
    if (context.loss_count) {
      std::string file_name = name_ + name;
      std::replace(file_name.begin(), file_name.end(), ' ', '_');
      const Tensor mean = sum.detach() / context.loss_count("");
      context.add_loss({file_name, mean.unsqueeze(0), "", /*weight=*/0});
    }
  };
  if (spec_.auxiliary) {
    const Tensor sums = scores.sum(at::IntArrayRef{0, 1});
    add("load balancing loss",
        balance_loss(sums, counts, spec_.chosen, tokens, tokens),
        spec_.balance_weight);
  }
  if (spec_.sequence) {
    const Tensor each = balance_loss(scores.sum(0), of_samples, spec_.chosen, length, length);
    add("sequence load balancing loss",
        each.sum() / static_cast<double>(batch),
        spec_.balance_weight);
  }
  if (history_ != nullptr && context.loss_count) {
    history_->keep(context.microbatch, counts.detach());
  }
  if (spec_.global) {
    const at::Tensor seen =
        context.loss_count ? history_->mean(context.microbatch) : counts; // of this data rank
    double all = tokens;
    for (const auto axis : spread.batch) {
      all *= static_cast<double>(mesh.size(axis));
    }
    const Tensor everywhere = Spread::over(spread.batch, seen, mesh);
    const Tensor sums = scores.sum(at::IntArrayRef{0, 1});
    add("global load balancing loss",
        balance_loss(sums, everywhere, spec_.chosen, tokens, all),
        spec_.balance_weight);
  }
  if (spec_.z_weight > 0) {
    const Tensor top = logits.detach().amax(-1, /*keepdim=*/true);
    const Tensor lse = (logits - top).exp().sum(-1).log() + top.squeeze(-1);
    add("z loss", lse.square().sum() / tokens, spec_.z_weight);
  }
}

void Router::limit(Routing& routing, const Spread& spread, StepContext& context) const {
  const at::NoGradGuard no_grad;
  const Mesh& mesh = context.mesh();
  const int64_t own = routing.choices.size(0);
  const double share =
      static_cast<double>(own * spread.ranks * spec_.chosen) / static_cast<double>(spec_.experts);
  routing.capacity = static_cast<int64_t>(std::ceil(share * *spec_.capacity));
  Tensor kept;
  if (spread.seq.empty()) {
    kept = kept_choices(routing, spec_.experts, routing.capacity, spec_.drop_by_position);
  } else {
    // All tokens of the microbatch, in the order of the sample, on each rank that has some.
    const auto cut = [&](Tensor x) { // to this rank's tokens, where they are cut behind the model's
      for (auto axis = spread.seq.rbegin(); axis != spread.seq.rend(); ++axis) {
        x = spread.partial[*axis].type == Type::partial ? mesh.group(*axis).slice(x, 0) : x;
      }
      return x;
    };
    const auto gathered = [&](Tensor x) {
      for (const auto axis : spread.seq) {
        x = mesh.group(axis).all_gather(x.contiguous(), 0);
      }
      return x;
    };
    const Tensor index = cut(context.token_index());
    const int64_t length = index.size(0);
    const Tensor order = std::get<1>(gathered(index).sort());
    const auto in_order = [&](const Tensor& x) {
      const Tensor all = gathered(x.view({length, -1}));
      return all.index_select(0, order).view({-1, spec_.chosen});
    };
    const Routing all{in_order(routing.choices), in_order(routing.weights.detach())};
    kept = kept_choices(all, spec_.experts, routing.capacity, spec_.drop_by_position);
    kept = kept.view({order.size(0), -1}).index_select(0, index).view({own, spec_.chosen});
  }
  const Tensor dropped = kept.bitwise_not();
  const Tensor number = dropped.sum(routing.weights.scalar_type());
  const double choices = static_cast<double>(own * spread.ranks * spec_.chosen);
  context.add_loss(
      {"dropped share",
       spread.total(number, mesh) / (choices * static_cast<double>(spec_.layers)),
       "",
       /*weight=*/0}
  );
  routing.choices = routing.choices.masked_fill(dropped, -1);
  {
    const at::AutoGradMode grad(routing.weights.requires_grad());
    routing.weights = routing.weights.masked_fill(dropped, 0);
  }
}

} // namespace mh
