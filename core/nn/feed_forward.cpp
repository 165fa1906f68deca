#include "megahost/nn/feed_forward.hpp"

#include "core/kernels/row_ops.hpp"
#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/relu.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

namespace mh {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Saves its input only.
struct Activate : torch::autograd::Function<Activate> {
  static at::Tensor
  forward(AutogradContext* ctx, const at::Tensor& x, const std::string& kind, bool gated) {
    ctx->save_for_backward({x});
    ctx->saved_data["kind"] = kind;
    ctx->saved_data["gated"] = gated;
    return ops::activation(x, kind, gated);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const at::Tensor x = ctx->get_saved_variables()[0];
    return {
        ops::activation_backward(
            gradients[0],
            x,
            ctx->saved_data["kind"].toStringRef(),
            ctx->saved_data["gated"].toBool()
        ),
        at::Tensor(),
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
    return Activate::apply(x, "gelu", false);
  case ActivationKind::gelu_tanh:
    return Activate::apply(x, "gelu_tanh", false);
  case ActivationKind::relu2:
    return at::relu(x).square();
  case ActivationKind::swiglu:
    return Activate::apply(x, "silu", true);
  case ActivationKind::geglu:
    return Activate::apply(x, "gelu", true);
  }
  return x;
}

FeedForwardPart::~FeedForwardPart() = default;

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
  RECORD_USER_SCOPE("mlp");
  const at::Tensor wide = up_.forward(x, context);
  return context.part(
      "activations",
      {wide},
      [this](const auto& in) { return activate(activation_, in[0]); },
      [&](const at::Tensor& active) { return down_.forward(active, context); }
  );
}

} // namespace mh
