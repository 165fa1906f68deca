#include "core/nn/head_norm.hpp"

#include "megahost/error.hpp"
#include "megahost/saved.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>

#include <numeric>
#include <string>
#include <vector>

namespace mh {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// y times the weights of its heads, whose gradient goes straight into the main gradient.
struct Weighted : torch::autograd::Function<Weighted> {
  struct Saved {
    Parameter* parameter;
  };

  static at::Tensor forward(
      AutogradContext* ctx, const at::Tensor& y, const at::Tensor& weight, Parameter* parameter
  ) {
    ctx->save_for_backward({y, weight});
    save(ctx, Saved{parameter});
    return y * weight;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    get_saved<Saved>(ctx).parameter->add_gradient([&](const at::Tensor& sum) {
      std::vector<int64_t> rows(static_cast<size_t>(saved[0].dim()) - 2);
      std::iota(rows.begin(), rows.end(), 0);
      sum.add_((gradients[0].to(sum.scalar_type()) * saved[0]).sum(rows));
    });
    return {gradients[0] * saved[1], at::Tensor(), at::Tensor()};
  }
};

} // namespace

HeadNorm::HeadNorm(Builder& builder, Axis heads, const NormSpec& spec)
    : kind_(spec.kind)
    , eps_(spec.eps)
    , weight_(&builder.parameter({{"weight", {heads, spec.axis}, Init::ones()}}, spec.seen)) {
  if (info(kind_).bias || info(kind_).one_plus) {
    throw Error(
        "a norm whose heads have weights of their own is no " + std::string(info(kind_).name),
        "take rmsnorm or layernorm_no_bias"
    );
  }
}

at::Tensor HeadNorm::forward(const at::Tensor& x) const {
  const at::Tensor ones = at::ones({x.size(-1)}, x.options());
  return Weighted::apply(normalise(kind_, x, ones, {}, eps_), weight_->value, weight_);
}

} // namespace mh
