#include "megahost/nn/norm.hpp"

#include "core/kernels/row_ops.hpp"
#include "megahost/error.hpp"
#include "megahost/saved.hpp"

#include <ATen/record_function.h>

namespace mh {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Saves x and one or two values per row; autograd through the plain operations would save five
/// times x.
struct Normalise : torch::autograd::Function<Normalise> {
  struct Saved {
    bool centred, bias;
  };

  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& x,
      const at::Tensor& weight,
      const std::optional<at::Tensor>& bias,
      double eps,
      bool centred
  ) {
    const auto [y, mean, rstd] = ops::norm(x, weight, bias.value_or(at::Tensor()), eps, centred);
    ctx->save_for_backward({x, weight, mean, rstd});
    save(ctx, Saved{centred, bias.has_value()});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto& [centred, bias] = get_saved<Saved>(ctx);
    const auto [dx, dweight, dbias] =
        ops::norm_backward(gradients[0], saved[0], saved[1], saved[2], saved[3], centred);
    return {dx, dweight, bias ? dbias : at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

} // namespace

NormKind norm_kind(const std::string& name) {
  std::string names;
  for (size_t i = 0; i < kNorms.size(); ++i) {
    if (name == kNorms[i].name) {
      return static_cast<NormKind>(i);
    }
    names += (i == 0 ? "" : ", ") + std::string(kNorms[i].name);
  }
  throw Error("there is no norm `" + name + "`", "norms: " + names);
}

at::Tensor normalise(
    NormKind kind, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps
) {
  const auto shift = bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
  return Normalise::apply(x, weight, shift, eps, info(kind).centred);
}

Norm::Norm(Builder& builder, const NormSpec& spec)
    : kind_(spec.kind)
    , eps_(spec.eps) {
  weight_ = &builder.parameter({{"weight", {spec.axis}, Init::ones()}}, spec.seen);
  if (info(kind_).bias) {
    bias_ = &builder.parameter({{"bias", {spec.axis}, Init::zeros()}}, spec.seen);
  }
}

at::Tensor Norm::forward(const at::Tensor& x) const {
  RECORD_USER_SCOPE("norm");
  return normalise(kind_, x, weight_->value, bias_ == nullptr ? at::Tensor() : bias_->value, eps_);
}

NormPart::~NormPart() = default;

at::Tensor NormPart::forward(const at::Tensor& x, StepContext& context) const {
  return context.part("norms", {x}, [this](const auto& in) { return forward(in[0]); });
}

at::Tensor NormPart::forward(
    const at::Tensor& x,
    StepContext& context,
    const std::function<at::Tensor(const at::Tensor&)>& reader
) const {
  return context.part(
      "norms", {x}, [this](const auto& in) { return forward(in[0]); }, reader
  );
}

} // namespace mh
