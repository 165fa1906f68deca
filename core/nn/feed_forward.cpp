#include "megahost/nn/feed_forward.hpp"

#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <torch/csrc/autograd/custom_function.h>

namespace mh {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor gate_activation(ActivationKind kind, const at::Tensor& gate) {
  return kind == ActivationKind::swiglu ? at::silu(gate) : at::gelu(gate, "none");
}

at::Tensor gate_backward(ActivationKind kind, const at::Tensor& gradient, const at::Tensor& gate) {
  return kind == ActivationKind::swiglu ? at::silu_backward(gradient, gate)
                                        : at::gelu_backward(gradient, gate, "none");
}

/// Saves the packed halves only.
struct Gated : torch::autograd::Function<Gated> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, int64_t kind) {
    ctx->save_for_backward({x});
    ctx->saved_data["kind"] = kind;
    const auto halves = x.chunk(2, -1);
    return gate_activation(static_cast<ActivationKind>(kind), halves[0]).mul_(halves[1]);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto kind = static_cast<ActivationKind>(ctx->saved_data["kind"].toInt());
    const auto halves = ctx->get_saved_variables()[0].chunk(2, -1);
    const at::Tensor& dy = gradients[0];
    return {
        at::cat(
            {gate_backward(kind, dy * halves[1], halves[0]),
             gate_activation(kind, halves[0]).mul_(dy)},
            -1
        ),
        at::Tensor()};
  }
};

std::vector<LinearSpec::Out> up_pieces(const FeedForwardSpec& spec) {
  const Axis mlp{axis::mlp, spec.hidden};
  if (is_gated(spec.activation)) {
    return {{"gate", mlp}, {"up", mlp}};
  }
  return {{"up", mlp}};
}

} // namespace

ActivationKind activation_kind(const std::string& name) {
  for (const auto& [known, kind] :
       {std::pair{"gelu", ActivationKind::gelu},
        {"gelu_tanh", ActivationKind::gelu_tanh},
        {"relu2", ActivationKind::relu2},
        {"swiglu", ActivationKind::swiglu},
        {"geglu", ActivationKind::geglu}}) {
    if (name == known) {
      return kind;
    }
  }
  throw Error(
      "there is no activation `" + name + "`", "activations: gelu, gelu_tanh, relu2, swiglu, geglu"
  );
}

bool is_gated(ActivationKind kind) {
  return kind == ActivationKind::swiglu || kind == ActivationKind::geglu;
}

at::Tensor activate(ActivationKind kind, const at::Tensor& x) {
  switch (kind) {
  case ActivationKind::gelu:
    return at::gelu(x, "none");
  case ActivationKind::gelu_tanh:
    return at::gelu(x, "tanh");
  case ActivationKind::relu2:
    return at::relu(x).square();
  case ActivationKind::swiglu:
  case ActivationKind::geglu:
    return Gated::apply(x, static_cast<int64_t>(kind));
  }
  return x;
}

FeedForward::FeedForward(Builder& builder, const FeedForwardSpec& spec)
    : activation_(spec.activation)
    , up_(builder, {.in = spec.embed, .outs = up_pieces(spec), .bias = spec.bias, .std = spec.std})
    , down_(
          builder,
          {.in = {axis::mlp, spec.hidden},
           .outs = {{"down", spec.embed}},
           .bias = spec.bias,
           .std = spec.out_std}
      ) {}

at::Tensor FeedForward::forward(const at::Tensor& x, StepContext& context) const {
  const at::Tensor wide = up_.forward(x, context);
  const at::Tensor active = context.part("activations", {wide}, [this](const auto& in) {
    return activate(activation_, in[0]);
  });
  return down_.forward(active, context);
}

} // namespace mh
