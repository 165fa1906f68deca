#include "megahost/nn/experts.hpp"

#include "core/kernels/row_ops.hpp"
#include "core/memory/staging.hpp"
#include "core/model/weight_queue.hpp"
#include "megahost/checking.hpp"
#include "megahost/error.hpp"
#include "megahost/nn/expert_kernel.hpp"
#include "megahost/saved.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tensor.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cmath>

namespace mh {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr LogicalAxis kExpertLatent{"expert_latent"};

/// [experts, rows, columns], where gate and up lie one behind the other.
Tensor matrices(const Tensor& weight) {
  return weight.dim() == 3 ? weight : weight.flatten(1, 2);
}

/// Runs `each` (expert, its rows of x) for experts that have rows.
template <class Each>
void over_experts(const Tensor& x, const Tensor& ends, const Each& each) {
  const Tensor host = ends.to(at::kCPU, at::kLong);
  const auto* end = host.const_data_ptr<int64_t>();
  for (int64_t e = 0; e + 1 < host.numel(); ++e) {
    if (end[e + 1] > end[e]) {
      each(e, x.narrow(0, end[e], end[e + 1] - end[e]));
    }
  }
}

/// One matrix per expert over its rows; saves the rows alone, and adds the weights' gradients
/// straight into the main gradient.
struct GroupedLinear : torch::autograd::Function<GroupedLinear> {
  struct Saved {
    const Experts::Product* product;
    WeightQueue* queue;
  };

  static Tensor forward(
      AutogradContext* ctx,
      const Tensor& x,
      const Tensor& weight,
      const Tensor& ends,
      const Experts::Product& product,
      WeightQueue* queue
  ) {
    ctx->save_for_backward({x, weight, ends});
    save(ctx, Saved{&product, queue});
    Tensor y = ops::grouped_product(x, matrices(weight), ends, /*transposed=*/true);
    if (product.bias != nullptr && product.adds_bias && !y.is_meta()) {
      const Tensor biases = product.bias->value.detach().flatten(1);
      over_experts(y, ends, [&](int64_t e, Tensor rows) { rows.add_(biases.select(0, e)); });
    }
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto& own = get_saved<Saved>(ctx);
    const auto& product = *own.product;
    const Tensor dy = gradients[0].contiguous();
    const Tensor& ends = saved[2];
    Tensor dx;
    if (ctx->needs_input_grad(0)) {
      dx = ops::grouped_product(dy, matrices(saved[1]), ends, /*transposed=*/false);
    }
    if (product.bias != nullptr) {
      product.bias->add_gradient([&](const Tensor& sum) {
        const Tensor sums = sum.flatten(1);
        if (!dy.is_meta()) {
          over_experts(dy, ends, [&](int64_t e, const Tensor& rows) {
            ops::add_row_sums_(sums.select(0, e), rows);
          });
        }
      });
    }
    const auto add = [dy, x = saved[0], ends, weight = product.weight] {
      weight->add_gradient([&](const Tensor& sum) {
        ops::grouped_gradient_(matrices(sum), dy, x, ends);
      });
    };
    now_or_later(own.queue, add);
    return {dx, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

Tensor grouped_linear(
    const Tensor& x, const Experts::Product& product, const Tensor& ends, StepContext& context
) {
  return GroupedLinear::apply(x, product.weight->value, ends, product, context.mode().weight_queue);
}

/// The placement of the tokens that an expert's weights meet: tokens of all ranks that share
/// experts, so only those of other copies of them are missing.
Placement seen_by_experts() {
  Placement seen;
  seen[MeshAxis::edp] = {PlacementType::split, 0};
  return seen;
}

/// The placement in which each token is on one rank of the stage.
Placement tokens_over_all_ranks(Placement placed, const Mesh& mesh) {
  for (const auto axis : {MeshAxis::dp, MeshAxis::cp, MeshAxis::tp}) {
    if (mesh.size(axis) > 1 && placed[axis].type == PlacementType::identical) {
      placed[axis] = {PlacementType::split, 0};
    }
  }
  return placed;
}

} // namespace

ExpertMethod::~ExpertMethod() = default;

std::vector<int64_t> even_ends(int64_t rows, int64_t experts) {
  std::vector<int64_t> ends{0};
  for (int64_t e = 0; e < experts; ++e) {
    ends.push_back(ends.back() + rows / experts + (e < rows % experts ? 1 : 0));
  }
  return ends;
}

Experts::Experts(Builder& builder, const ExpertsSpec& spec)
    : spec_(spec) {
  const Axis experts{axis::expert, spec.experts};
  const Axis hidden{axis::expert_mlp, spec.hidden};
  const bool gated = spec.activation.gated();
  const auto product = [&](const std::string& name, Dims dims, double std) {
    const Placement seen = seen_by_experts();
    Product made;
    made.weight = &builder.parameter({{name + ".weight", dims, Init::normal(std)}}, seen);
    dims.pop_back();
    if (spec.bias) {
      made.bias = &builder.parameter({{name + ".bias", dims, Init::zeros()}}, seen);
    }
    return made;
  };
  Dims up{experts, hidden, spec.embed};
  if (gated) {
    up.insert(up.begin() + 1, Axis{{"gate_up"}, 2});
  }
  up_ = product(gated ? "gate_up" : "up", up, spec.std);
  down_ = product("down", {experts, spec.embed, hidden}, spec.out_std);
  down_.adds_bias = builder.mesh().coordinate(MeshAxis::etp) == 0;
  first_ = down_.weight->pieces[0].offset[0];
  local_ = down_.weight->pieces[0].shape[0];
}

Tensor Experts::forward(const Tensor& rows, const Tensor& given, StepContext& context) const {
  RECORD_USER_SCOPE("experts");
  // A GPU's GEMMs read int32: made once for all of them.
  const Tensor ends = context.mode().target == at::kCUDA ? given.to(at::kInt) : given;
  const Tensor wide = grouped_linear(rows, up_, ends, context);
  return context.part(
      "activations",
      {wide},
      [this](const auto& in) { return spec_.activation(in[0]); },
      [&](const Tensor& active) { return grouped_linear(active, down_, ends, context); }
  );
}

Tensor
Experts::forward(const Tensor& rows, const std::vector<int64_t>& ends, StepContext& context) const {
  return forward(rows, staged(at::tensor(ends, at::kLong), rows.device()), context);
}

Tensor
Experts::mixed(const Tensor& x, const Routing& routing, int64_t pad, StepContext& context) const {
  const auto [slots, ends] = ops::expert_slots(routing.choices, first_, local_, pad);
  const int64_t choices = routing.choices.numel();
  if (context.mode().target == at::kCUDA && local_ == spec_.experts) { // no wait for the number
    const Tensor rows = ops::to_slots(x, slots, pad > 0 ? pad * local_ : choices);
    return ops::from_slots(forward(rows, ends, context), slots, routing.weights);
  }
  const double share = static_cast<double>(choices * local_) / static_cast<double>(spec_.experts);
  const auto assumed = static_cast<int64_t>(std::ceil(share * context.mode().imbalance));
  const auto host = context.host_values(ends, even_ends(pad > 0 ? pad * local_ : assumed, local_));
  const Tensor rows = ops::to_slots(x, slots, host.back());
  return ops::from_slots(forward(rows, ends, context), slots, routing.weights);
}

MixtureOfExperts::MixtureOfExperts(Builder& builder, const MixtureSpec& spec)
    : embed_(spec.router.embed)
    , inner_(spec.latent ? Axis{kExpertLatent, *spec.latent} : embed_)
    , pad_(spec.pad)
    , name_(builder.global_name("experts"))
    , router_([&] {
      const auto names = builder.scope("router");
      return Router(builder, spec.router);
    }())
    , experts_([&] {
      const auto names = builder.scope("experts");
      return Experts(
          builder,
          {.embed = inner_,
           .experts = spec.router.experts,
           .hidden = spec.hidden,
           .activation = spec.activation,
           .bias = spec.bias,
           .std = spec.std,
           .out_std = spec.out_std}
      );
    }()) {
  const double products = spec.activation.gated() ? 3 : 2;
  builder.flops.gemms += 2.0 * products * static_cast<double>(spec.router.chosen * spec.hidden) *
                         static_cast<double>(inner_.elements() * builder.seq());
  const auto placed = builder.place(embed_);
  const int64_t ranks = builder.mesh().size(MeshAxis::tp);
  const int64_t length =
      local_sizes(builder.dims(embed_), builder.place(embed_, Tier::tokens), builder.mesh())[0];
  if (placed[MeshAxis::tp].type == PlacementType::identical && length % ranks != 0) {
    throw Error(
        "each of " + std::to_string(ranks) + " tensor-parallel ranks takes its share of " +
            std::to_string(length) + " tokens of a sample to the experts, and they do not divide",
        "choose model.seq_length as a multiple of " +
            std::to_string(ranks * builder.mesh().size(MeshAxis::cp))
    );
  }
  if (spec.latent) {
    latent_down_.emplace(
        builder, LinearSpec{.in = embed_, .outs = {{"latent_down", inner_}}, .std = spec.std}
    );
    latent_up_.emplace(
        builder, LinearSpec{.in = inner_, .outs = {{"latent_up", embed_}}, .std = spec.out_std}
    );
  }
  if (spec.shared) {
    const auto names = builder.scope("shared");
    shared_.emplace(
        builder,
        FeedForwardSpec{
            .embed = embed_,
            .hidden = *spec.shared,
            .activation = spec.activation,
            .bias = spec.bias,
            .std = spec.std,
            .out_std = spec.out_std}
    );
  }
  if (spec.shared_gate) {
    shared_gate_.emplace(
        builder,
        LinearSpec{
            .in = embed_, .outs = {{"shared_gate", {{"gate"}, 1}}}, .std = spec.std, .fp8 = false}
    );
  }
}

Tensor MixtureOfExperts::forward(const Tensor& x, StepContext& context) const {
  RECORD_USER_SCOPE("mixture");
  Tensor y = routed(x, context);
  if (shared_) {
    const Tensor shared = shared_->forward(x, context);
    y = y + (shared_gate_ ? at::sigmoid(shared_gate_->forward(x, context)) * shared : shared);
  }
  return y;
}

Tensor MixtureOfExperts::routed(const Tensor& x, StepContext& context) const {
  if (context.mode()
          .tokens_apart) { // what other tokens choose decides which rows an expert adds up
    return x * 0;          // NaN of its own token stay
  }
  const Mesh& mesh = context.mesh();
  const Placement placed = context.place(inner_);
  const Placement apart = tokens_over_all_ranks(placed, mesh);
  const Routing all = router_.route(x, context);
  const Tensor inner = latent_down_ ? latent_down_->forward(x, context) : x;
  const Tensor own = convert(inner, placed, apart, mesh);
  const auto of_this_rank = [&](const Tensor& pairs) { // [tokens, k] -> those of this rank
    const Tensor grid = pairs.view({x.size(0), x.size(1), -1});
    return (pairs.is_floating_point() ? convert(grid, placed, apart, mesh)
                                      : convert_forward(grid, placed, apart, mesh))
        .reshape({-1, pairs.size(1)});
  };
  const Routing routing{of_this_rank(all.choices), of_this_rank(all.weights), all.capacity};
  const Tensor rows = own.reshape({-1, own.size(2)});
  const int64_t pad = pad_ ? routing.capacity : 0;
  const auto& method = context.rules().experts;
  const Tensor y = method == nullptr ? experts_.mixed(rows, routing, pad, context)
                                     : method->mixed(rows, routing, pad, experts_, context);
  const Tensor back =
      checked(convert(y.view(own.sizes()), apart, placed, mesh), placed, name_, "output", context);
  return latent_up_ ? latent_up_->forward(back, context) : back;
}

} // namespace mh
