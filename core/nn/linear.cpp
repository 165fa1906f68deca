#include "megahost/nn/linear.hpp"

#include "core/kernels/gemm.hpp"
#include "core/kernels/row_ops.hpp"
#include "core/mesh/start_convert.hpp"
#include "core/model/conserved.hpp"
#include "core/nn/fp8_linear.hpp"
#include "megahost/checking.hpp"
#include "megahost/error.hpp"
#include "megahost/saved.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>

namespace mh {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The inputs of the Function in addition to its tensors; the layer and the step outlive it.
struct LinearCall {
  const Linear::Plan* plan;
  const Mesh* mesh;
  Parameter* weight;
  Parameter* bias; // nullptr without
  WeightQueue* queue;
  bool checking;
};

/// A conversion of the layer's input or output, which goes on until it is waited for; `mine`: of a
/// tensor that has no other user. In the checking mode nothing may get lost in it.
Pending converted(
    const LinearCall& call,
    const at::Tensor& x,
    const Placement& from,
    const Placement& to,
    const char* name,
    bool mine = false
) {
  if (!call.checking) {
    return start_convert_forward(x, from, to, *call.mesh, mine);
  }
  at::Tensor y = convert_forward(x, from, to, *call.mesh);
  const auto& layer = call.weight->pieces.front().name;
  check_conversion(x, y, from, to, *call.mesh, /*gradient=*/false, layer, name);
  return Pending(y);
}

/// A conversion of gradients of the layer's output or input, on their way back.
Pending converted_back(
    const LinearCall& call,
    const at::Tensor& dy,
    const Placement& from,
    const Placement& to,
    const char* name,
    bool mine = false
) {
  if (!call.checking) {
    return start_convert_backward(dy, from, to, *call.mesh, mine);
  }
  at::Tensor dx = convert_backward(dy, from, to, *call.mesh);
  const auto& layer = call.weight->pieces.front().name;
  check_conversion(dy, dx, to, from, *call.mesh, /*gradient=*/true, layer, name);
  return Pending(dx);
}

void add_bias_gradient(const at::Tensor& dy, Parameter& bias) {
  bias.add_gradient([&](const at::Tensor& sum) { ops::add_row_sums_(sum, ops::rows_of(dy)); });
}

/// main_grad += dyᵀ x
void add_weight_gradient(const at::Tensor& dy, const at::Tensor& x, Parameter& weight) {
  weight.add_gradient([&](const at::Tensor& sum) {
    ops::gemm_(sum, ops::rows_of(dy).t(), ops::rows_of(x), /*add=*/true);
  });
}

/// x Wᵀ + b
at::Tensor
apply_weight(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  const at::Tensor rows = ops::rows_of(x);
  if (ops::libtorch_multiplies(rows, weight.t())) {
    return at::linear(x, weight, bias);
  }
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  at::Tensor y = ops::product(rows, weight.t()).view(sizes);
  return bias ? y.add_(*bias) : y;
}

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  using Saved = LinearCall;

  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& x,
      const at::Tensor& weight,
      const std::optional<at::Tensor>& bias,
      const LinearCall& call
  ) {
    const auto& plan = *call.plan;
    ctx->save_for_backward({x, weight});
    save(ctx, call);
    const at::Tensor input = converted(call, x, plan.in, plan.need, "input").wait();
    at::Tensor y = apply_weight(input, weight, plan.bias_after ? std::nullopt : bias);
    y = converted(call, y, plan.made, plan.out, "output", /*mine=*/true).wait();
    if (plan.bias_after && bias) {
      y.add_(*bias);
    }
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto& call = get_saved<Saved>(ctx);
    const auto& plan = *call.plan;
    const at::Tensor dy = converted_back(call, gradients[0], plan.made, plan.out, "output").wait();
    const bool trained = call.weight->value.requires_grad();
    Pending input; // gathered, overlapped with the GEMM that does not need it
    if (trained && call.queue == nullptr) {
      input = converted(call, saved[0], plan.in, plan.need, "input");
    }
    Pending dx; // summed, overlapped with the weight's gradient
    if (ctx->needs_input_grad(0)) {
      auto sizes = dy.sizes().vec();
      sizes.back() = saved[1].size(1);
      const at::Tensor made = ops::product(ops::rows_of(dy), saved[1]).view(sizes);
      dx = converted_back(call, made, plan.in, plan.need, "input", /*mine=*/true);
    }
    if (call.bias != nullptr) {
      add_bias_gradient(plan.bias_after ? gradients[0] : dy, *call.bias);
    }
    if (trained && call.queue == nullptr) {
      add_weight_gradient(dy, input.wait(), *call.weight);
    } else if (trained) {
      call.queue->push_back([x = saved[0], dy, call] {
        const auto& p = *call.plan;
        add_weight_gradient(dy, converted(call, x, p.in, p.need, "input").wait(), *call.weight);
      });
    }
    return {dx.wait(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

} // namespace

void Linear::make_plan(Builder& builder, const LinearSpec& spec) {
  plan_.in = builder.place(spec.in);
  plan_.need = plan_.in;
  plan_.made = plan_.in;
  plan_.out = builder.place(spec.outs.front().axis);
  for (const auto axis : kAllMeshAxes) {
    if (builder.mesh().size(axis) == 1) {
      continue;
    }
    const bool in_mapped = builder.rules().maps(spec.in.logical, axis);
    bool out_mapped = false;
    for (const auto& out : spec.outs) {
      out_mapped = out_mapped || builder.rules().maps(out.axis.logical, axis);
    }
    if (in_mapped && out_mapped) {
      throw Error(
          "the linear layer `" + builder.global_name(spec.outs.front().name) +
          "` has its input and its output split over " + std::string(to_string(axis))
      );
    }
    if (out_mapped) {
      plan_.need[axis] = {PlacementType::replicated, 0};
      plan_.made[axis] = {PlacementType::split, 2};
      plan_.out[axis] = {PlacementType::split, 2};
    } else if (in_mapped) {
      plan_.made[axis] = {PlacementType::partial, 0};
      plan_.bias_after = true;
    }
  }
  double columns = 0;
  for (const auto& out : spec.outs) {
    columns += static_cast<double>(out.axis.elements());
  }
  builder.flops.gemms +=
      2.0 * static_cast<double>(spec.in.elements()) * columns * static_cast<double>(builder.seq());
}

Linear::Linear(Builder& builder, const LinearSpec& spec) {
  make_plan(builder, spec);
  std::vector<ParamSpec> weights;
  std::vector<ParamSpec> biases;
  for (const auto& out : spec.outs) {
    const std::string prefix = out.name.empty() ? "" : out.name + ".";
    weights.push_back(
        {prefix + "weight", {out.axis, spec.in}, Init::normal(out.std.value_or(spec.std))}
    );
    biases.push_back({prefix + "bias", {out.axis}, Init::zeros()});
  }
  weight_ = &builder.parameter(weights, plan_.need);
  if (spec.fp8 && builder.fp8() != nullptr) {
    fp8_ = builder.fp8();
    fp8_index_ = fp8_->add(weight_->pieces[0].name);
  }
  for (size_t i = 0; i < weight_->pieces.size(); ++i) {
    const int64_t end =
        i + 1 < weight_->pieces.size() ? weight_->pieces[i + 1].row : weight_->value.size(0);
    widths_.push_back(end - weight_->pieces[i].row);
  }
  if (spec.bias) {
    bias_ = &builder.parameter(biases, plan_.bias_after ? plan_.out : plan_.made);
  }
}

Linear::Linear(Builder& builder, const LinearSpec& spec, Parameter& weight)
    : weight_(&weight) {
  MH_ASSERT(!spec.bias, "a linear layer over a shared weight has no bias");
  make_plan(builder, spec);
}

at::Tensor Linear::forward(const at::Tensor& x, StepContext& context) const {
  WeightQueue* queue = context.mode().weight_queue;
  if (fp8_ != nullptr) {
    return fp8_linear(
        x,
        {.plan = &plan_,
         .mesh = &context.mesh(),
         .weight = weight_,
         .bias = bias_,
         .queue = queue,
         .state = fp8_.get(),
         .product = fp8_index_,
         .remember = at::GradMode::is_enabled() && !context.mode().tokens_apart}
    );
  }
  const LinearCall call{&plan_, &context.mesh(), weight_, bias_, queue, context.mode().checking};
  const auto bias = bias_ == nullptr ? std::nullopt : std::optional<at::Tensor>(bias_->value);
  const auto& name = weight_->pieces.front().name;
  const at::Tensor input = checked(x, plan_.in, name, "input", context);
  const at::Tensor y = LinearFunction::apply(input, weight_->value, bias, call);
  return checked(y, plan_.out, name, "output", context);
}

std::vector<at::Tensor> Linear::parts(const at::Tensor& y) const {
  return y.split_with_sizes(widths_, -1);
}

} // namespace mh
