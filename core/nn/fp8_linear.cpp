#include "core/nn/fp8_linear.hpp"

#include "core/kernels/fp8_ops.hpp"
#include "core/kernels/row_ops.hpp"
#include "core/mesh/start_convert.hpp"
#include "megahost/error.hpp"
#include "megahost/saved.hpp"

#include <ATen/TensorOperators.h>

#include <utility>

namespace mh {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The placement of the weight's parts: split over the mesh axes that the GEMM's output or input
/// is.
Placement weight_placement(const Linear::Plan& plan) {
  Placement placement;
  for (const auto axis : kAllMeshAxes) {
    const auto made = plan.made[axis];
    if (made.type == PlacementType::partial || made == Along{PlacementType::split, 2}) {
      placement[axis] = {PlacementType::split, 0};
    }
  }
  return placement;
}

Rounded rounded_weight(const Fp8Call& call, bool remember) {
  return call.state->round(
      call.product,
      Fp8Operand::weight,
      call.weight->value.detach(),
      remember,
      weight_placement(*call.plan),
      *call.mesh
  );
}

/// Gathers travel as bytes: collectives know no FP8.
Pending start_gather(const at::Tensor& x, const Fp8Call& call) {
  return start_convert_forward(x.view(at::kByte), call.plan->in, call.plan->need, *call.mesh);
}

at::Tensor gathered(Pending bytes, const at::Tensor& x) {
  return bytes.wait().contiguous().view(x.scalar_type());
}

void add_weight_gradient(
    const Fp8Call& call, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& inverse
) {
  call.weight->add_gradient([&](const at::Tensor& sum) {
    sum.add_(ops::fp8_product(ops::rows_of(dy).t(), ops::rows_of(x), inverse));
  });
}

struct Fp8Linear : torch::autograd::Function<Fp8Linear> {
  struct Saved {
    Fp8Call call;
    at::ScalarType type; // dtype of x
  };

  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& x,
      const at::Tensor&, // the weight, so that a gradient is wanted
      const std::optional<at::Tensor>& bias,
      const Fp8Call& call
  ) {
    const auto& plan = *call.plan;
    const auto [input, inverse] = call.state->round(
        call.product, Fp8Operand::input, x.contiguous(), call.remember, plan.in, *call.mesh
    );
    const auto weight = rounded_weight(call, call.remember);
    ctx->save_for_backward({input, inverse});
    save(ctx, Saved{call, x.scalar_type()});
    at::Tensor y = ops::fp8_product(
        ops::rows_of(gathered(start_gather(input, call), input)),
        weight.values.t(),
        inverse * weight.inverse
    );
    if (bias && !plan.bias_after) {
      y.add_(*bias);
    }
    auto sizes = x.sizes().vec();
    sizes[0] = y.size(0) / sizes[1];
    sizes[2] = y.size(1);
    y = y.to(x.scalar_type()).view(sizes);
    y = start_convert_forward(y, plan.made, plan.out, *call.mesh, /*mine=*/true).wait();
    return bias && plan.bias_after ? y.add_(*bias) : y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto [call, type] = get_saved<Saved>(ctx);
    const auto& plan = *call.plan;
    const at::Tensor dy =
        convert_backward(gradients[0], plan.made, plan.out, *call.mesh).contiguous();
    const auto [rounded, inverse] = call.state->round(
        call.product, Fp8Operand::gradient, dy, call.remember, plan.made, *call.mesh
    );
    const bool trained = call.weight->value.requires_grad();
    Pending input; // gathered, overlapped with the GEMM that does not need it
    if (trained && call.queue == nullptr) {
      input = start_gather(saved[0], call);
    }
    Pending dx; // summed, overlapped with the weight's gradient
    if (ctx->needs_input_grad(0)) {
      const auto weight = rounded_weight(call, /*remember=*/false);
      at::Tensor made =
          ops::fp8_product(ops::rows_of(rounded), weight.values, inverse * weight.inverse).to(type);
      auto sizes = dy.sizes().vec();
      sizes.back() = made.size(1);
      made = made.view(sizes);
      dx = start_convert_backward(made, plan.in, plan.need, *call.mesh, /*mine=*/true);
    }
    if (call.bias != nullptr) {
      const at::Tensor rows = ops::rows_of(plan.bias_after ? gradients[0] : dy);
      call.bias->add_gradient([&](const at::Tensor& sum) { ops::add_row_sums_(sum, rows); });
    }
    const at::Tensor both = inverse * saved[1];
    if (trained && call.queue == nullptr) {
      add_weight_gradient(call, rounded, gathered(std::move(input), saved[0]), both);
    } else if (trained) {
      call.queue->push_back([call = call, x = saved[0], both, dy8 = rounded] {
        add_weight_gradient(call, dy8, gathered(start_gather(x, call), x), both);
      });
    }
    return {dx.wait(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

} // namespace

at::Tensor fp8_linear(const at::Tensor& x, const Fp8Call& call) {
  const auto bias =
      call.bias == nullptr ? std::nullopt : std::optional<at::Tensor>(call.bias->value);
  return Fp8Linear::apply(x, call.weight->value, bias, call);
}

} // namespace mh
