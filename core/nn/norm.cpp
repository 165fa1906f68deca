#include "megahost/nn/norm.hpp"

#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/rsqrt.h>
#include <torch/csrc/autograd/custom_function.h>

namespace mh {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType statistics_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// Saves x and one value per row; autograd through the plain operations would save five times x.
struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor
  forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, double eps) {
    const at::Tensor wide = x.to(statistics_type(x));
    const at::Tensor rstd = at::rsqrt(wide.square().mean(-1, /*keepdim=*/true).add_(eps));
    ctx->save_for_backward({x, weight, rstd});
    return wide.mul(rstd).mul_(weight).to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto& x = saved[0];
    const auto& rstd = saved[2];
    const auto type = statistics_type(x);
    const at::Tensor dy = gradients[0].to(type);
    const at::Tensor normal = x.to(type).mul(rstd);
    const at::Tensor dw = dy.mul(normal).reshape({-1, x.size(-1)}).sum(0);
    const at::Tensor scaled = dy.mul(saved[1]);
    const at::Tensor mean = scaled.mul(normal).mean(-1, /*keepdim=*/true);
    const at::Tensor dx = (scaled - normal * mean).mul_(rstd).to(x.scalar_type());
    return {dx, dw, at::Tensor()};
  }
};

} // namespace

NormKind norm_kind(const std::string& name) {
  if (name == "layernorm") {
    return NormKind::layernorm;
  }
  if (name == "rmsnorm") {
    return NormKind::rmsnorm;
  }
  throw Error("there is no norm `" + name + "`", "norms: layernorm, rmsnorm");
}

at::Tensor normalise(
    NormKind kind, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps
) {
  if (kind == NormKind::rmsnorm) {
    return RmsNorm::apply(x, weight, eps);
  }
  const auto shift = bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
  return std::get<0>(at::native_layer_norm(x, {x.size(-1)}, weight, shift, eps));
}

Norm::Norm(Builder& builder, const NormSpec& spec)
    : kind_(spec.kind)
    , eps_(spec.eps) {
  weight_ = &builder.parameter({{"weight", {spec.axis}, Init::ones()}}, spec.seen);
  if (kind_ == NormKind::layernorm) {
    bias_ = &builder.parameter({{"bias", {spec.axis}, Init::zeros()}}, spec.seen);
  }
}

at::Tensor Norm::forward(const at::Tensor& x) const {
  return normalise(kind_, x, weight_->value, bias_ == nullptr ? at::Tensor() : bias_->value, eps_);
}

at::Tensor Norm::forward(const at::Tensor& x, StepContext& context) const {
  return context.part("norms", {x}, [this](const auto& in) { return forward(in[0]); });
}

} // namespace mh
