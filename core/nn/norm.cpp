#include "megahost/nn/norm.hpp"

#include "core/kernels/row_ops.hpp"
#include "core/model/recompute.hpp"
#include "core/nn/main_grads.hpp"
#include "core/nn/split_rows.hpp"
#include "megahost/error.hpp"
#include "megahost/saved.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/record_function.h>

namespace mh {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Saves the sum and one or two values per row; autograd through the plain operations would save
/// five times the sum.
struct Normalise : torch::autograd::Function<Normalise> {
  struct Call {
    bool centred, one_plus;
    Parameter *weight, *bias; // whose gradients are added to; null: autograd gets them
  };

  struct Saved {
    Call call;
    bool added, bias; // there is one
  };

  static variable_list forward(
      AutogradContext* ctx,
      const at::Tensor& x,
      const std::optional<at::Tensor>& added,
      const at::Tensor& weight,
      const std::optional<at::Tensor>& bias,
      double eps,
      const Call& call
  ) {
    const at::Tensor factor = call.one_plus ? weight + 1 : weight;
    const auto made = ops::norm(
        x, added.value_or(at::Tensor()), factor, bias.value_or(at::Tensor()), eps, call.centred
    );
    ctx->set_materialize_grads(false); // mostly the sum is read no further
    ctx->save_for_backward({made.sum, factor, made.mean, made.rstd});
    save(ctx, Saved{call, added.has_value(), bias.has_value()});
    return {made.y, made.sum};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto& own = get_saved<Saved>(ctx);
    at::Tensor dx = gradients[1], dweight, dbias;
    if (gradients[0].defined()) {
      const auto differentiate = [&](const at::Tensor& of_weight, const at::Tensor& of_bias) {
        dx = ops::norm_backward(
            gradients[0],
            saved[0],
            saved[1],
            saved[2],
            saved[3],
            gradients[1],
            own.call.centred,
            of_weight,
            of_bias
        );
      };
      if (own.call.weight == nullptr) {
        dweight = at::zeros(saved[1].sizes(), saved[3].options());
        dbias = own.bias ? at::zeros_like(dweight) : at::Tensor();
        differentiate(dweight, dbias);
      } else {
        with_main_grads(own.call.weight, own.call.bias, differentiate);
      }
    }
    return {dx, own.added ? dx : at::Tensor(), dweight, dbias, at::Tensor(), at::Tensor()};
  }
};

std::optional<at::Tensor> optional(const at::Tensor& x) {
  return x.defined() ? std::optional<at::Tensor>(x) : std::nullopt;
}

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
  const Normalise::Call call{info(kind).centred, info(kind).one_plus, nullptr, nullptr};
  return Normalise::apply(x, optional({}), weight, optional(bias), eps, call)[0];
}

Norm::Norm(Builder& builder, const NormSpec& spec)
    : kind_(spec.kind)
    , eps_(spec.eps) {
  for (const auto axis : kAllMeshAxes) {
    if (builder.mesh().size(axis) > 1 && builder.rules().maps(spec.axis.logical, axis)) {
      parts_.push_back(builder.mesh().group(axis));
    }
  }
  if (!parts_.empty() && !info(spec.kind).split) {
    throw Error(
        std::string(info(spec.kind).name) + " normalises no rows that ranks hold in parts, but `" +
            builder.global_name("weight") + "` is split over " + parts_.front().name(),
        "choose another norm, or an axis that no strategy splits"
    );
  }
  weight_ = &builder.parameter(
      {{"weight", {spec.axis}, info(kind_).one_plus ? Init::zeros() : Init::ones()}}, spec.seen
  );
  if (info(kind_).bias) {
    bias_ = &builder.parameter({{"bias", {spec.axis}, Init::zeros()}}, spec.seen);
  }
}

at::Tensor Norm::forward(const at::Tensor& x) const {
  return of_sum(x, {}).y;
}

Normed Norm::of_sum(const at::Tensor& x, const at::Tensor& added) const {
  RECORD_USER_SCOPE("norm");
  if (!parts_.empty()) {
    const at::Tensor sum = added.defined() ? x + added : x;
    return {split_rmsnorm(sum, *weight_, eps_, parts_), sum};
  }
  const at::Tensor bias = bias_ == nullptr ? at::Tensor() : bias_->value;
  const Normalise::Call call{info(kind_).centred, info(kind_).one_plus, weight_, bias_};
  const auto made =
      Normalise::apply(x, optional(added), weight_->value, optional(bias), eps_, call);
  return {made[0], made[1]};
}

NormPart::~NormPart() = default;

Normed NormPart::of_sum(const at::Tensor& x, const at::Tensor& added) const {
  const at::Tensor sum = added.defined() ? x + added : x;
  return {forward(kept_inputs({sum})[0]), sum};
}

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
