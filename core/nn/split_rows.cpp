#include "core/nn/split_rows.hpp"

#include "core/kernels/row_ops.hpp"
#include "core/nn/main_grads.hpp"
#include "megahost/saved.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/rsqrt.h>

namespace mh {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor widened(const at::Tensor& x) {
  return x.to(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

/// [..., n] -> [..., 1]. A part that several ranks hold counts once for each, in the sum and in the
/// number of parts; of gradients these ranks have shares, which add up.
at::Tensor means_of_rows(const at::Tensor& x, const std::vector<Group>& parts) {
  at::Tensor means = x.mean(-1, /*keepdim=*/true);
  for (const Group& group : parts) {
    group.all_reduce(means);
    means.div_(group.size());
  }
  return means;
}

struct SplitRmsNorm : torch::autograd::Function<SplitRmsNorm> {
  struct Saved {
    Parameter* weight;
    const std::vector<Group>* parts;
  };

  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& x,
      const at::Tensor& weight,
      double eps,
      const Saved& saved
  ) {
    const at::Tensor wide = widened(x);
    const at::Tensor rstd = at::rsqrt(means_of_rows(wide.square(), *saved.parts).add_(eps));
    ctx->save_for_backward({x, weight, rstd});
    save(ctx, saved);
    return (wide * rstd).mul_(weight).to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto tensors = ctx->get_saved_variables();
    const auto& [weight, parts] = get_saved<Saved>(ctx);
    const at::Tensor &x = tensors[0], &rstd = tensors[2];
    const at::Tensor normal = widened(x) * rstd;
    const at::Tensor dy = widened(gradients[0]);
    with_main_grad(weight, [&](const at::Tensor& sum) {
      if (sum.defined()) {
        ops::add_row_sums_(sum, ops::rows_of(dy * normal));
      }
    });
    const at::Tensor scaled = dy * tensors[1];
    const at::Tensor mean = means_of_rows(scaled * normal, *parts);
    const at::Tensor dx = (scaled - normal * mean).mul_(rstd).to(x.scalar_type());
    return {dx, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

} // namespace

at::Tensor
split_rmsnorm(const at::Tensor& x, Parameter& weight, double eps, const std::vector<Group>& parts) {
  return SplitRmsNorm::apply(x, weight.value, eps, SplitRmsNorm::Saved{&weight, &parts});
}

} // namespace mh
