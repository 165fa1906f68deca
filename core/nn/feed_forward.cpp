#include "megahost/nn/feed_forward.hpp"

#include "core/kernels/row_ops.hpp"
#include "megahost/error.hpp"
#include "megahost/saved.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/relu.h>
#include <ATen/record_function.h>

#include <array>

namespace mh {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Saves its input only.
struct ActivateFunction : torch::autograd::Function<ActivateFunction> {
  struct Saved {
    std::string kind;
    bool gated;
  };

  static at::Tensor
  forward(AutogradContext* ctx, const at::Tensor& x, const std::string& kind, bool gated) {
    ctx->save_for_backward({x});
    save(ctx, Saved{kind, gated});
    return ops::activation(x, kind, gated);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const at::Tensor x = ctx->get_saved_variables()[0];
    const auto& [kind, gated] = get_saved<Saved>(ctx);
    return {ops::activation_backward(gradients[0], x, kind, gated), at::Tensor(), at::Tensor()};
  }
};

/// g sigmoid(1.702 g) (u + 1) with g at most 7 and u within -7 and 7, computed in float32; saves its
/// input only.
struct ClampedSwiglu : torch::autograd::Function<ClampedSwiglu> {
  static constexpr double kLimit = 7, kSlope = 1.702;

  struct Halves {
    at::Tensor gate, up;               // as they are
    at::Tensor low_gate, low_up, open; // within the bounds, and the sigmoid
  };

  static Halves halves(const at::Tensor& x) {
    const auto parts = x.to(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat).chunk(2, -1);
    const at::Tensor low = parts[0].clamp_max(kLimit);
    return {parts[0], parts[1], low, parts[1].clamp(-kLimit, kLimit), (low * kSlope).sigmoid()};
  }

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    ctx->save_for_backward({x});
    const Halves h = halves(x);
    return (h.low_gate * h.open * (h.low_up + 1)).to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const at::Tensor x = ctx->get_saved_variables()[0];
    const Halves h = halves(x);
    const at::Tensor dy = gradients[0].to(h.gate.scalar_type());
    const at::Tensor slope = h.open * (h.low_gate * kSlope * (1 - h.open) + 1);
    const at::Tensor dgate = dy * (h.low_up + 1) * slope * h.gate.le(kLimit);
    const at::Tensor dup = dy * h.low_gate * h.open * h.up.abs().le(kLimit);
    return {at::cat({dgate, dup}, -1).to(x.scalar_type())};
  }
};

constexpr std::array<ActivationInfo, 8> kActivations{{
    {"gelu", false, "gelu", nullptr},
    {"gelu_tanh", false, "gelu_tanh", nullptr},
    {"relu", false, "", [](const at::Tensor& x) { return at::relu(x); }},
    {"relu2", false, "", [](const at::Tensor& x) { return at::relu(x).square(); }},
    {"swiglu", true, "silu", nullptr},
    {"geglu", true, "gelu", nullptr},
    {"geglu_tanh", true, "gelu_tanh", nullptr},
    {"swiglu_clamped", true, "", [](const at::Tensor& x) { return ClampedSwiglu::apply(x); }},
}};

constexpr const ActivationInfo& info(ActivationKind kind) {
  return kActivations.at(static_cast<size_t>(kind));
}

static_assert(info(ActivationKind::gelu).name == "gelu");
static_assert(info(ActivationKind::gelu_tanh).name == "gelu_tanh");
static_assert(info(ActivationKind::swiglu).name == "swiglu");

std::vector<LinearSpec::Out> up_pieces(const FeedForwardSpec& spec) {
  const Axis mlp{axis::mlp, spec.hidden};
  if (spec.activation.gated()) {
    return {{"gate", mlp}, {"up", mlp}};
  }
  return {{"up", mlp}};
}

} // namespace

std::span<const ActivationInfo> activations() {
  return kActivations;
}

ActivationKind activation_kind(const std::string& name) {
  std::string names;
  for (size_t i = 0; i < activations().size(); ++i) {
    if (name == activations()[i].name) {
      return static_cast<ActivationKind>(i);
    }
    names += (i == 0 ? "" : ", ") + std::string(activations()[i].name);
  }
  throw Error("there is no activation `" + name + "`", "activations: " + names);
}

bool is_gated(ActivationKind kind) {
  return info(kind).gated;
}

at::Tensor activate(ActivationKind kind, const at::Tensor& x) {
  const ActivationInfo& row = info(kind);
  return row.kernel.empty() ? row.plain(x)
                            : ActivateFunction::apply(x, std::string(row.kernel), row.gated);
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
      [this](const auto& in) { return activation_(in[0]); },
      [&](const at::Tensor& active) { return down_.forward(active, context); }
  );
}

} // namespace mh
