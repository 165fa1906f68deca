#include "megahost/nn/dropout.hpp"

#include "core/kernels/ops.hpp"
#include "core/memory/staging.hpp"
#include "core/nn/dropout_mask.hpp"
#include "megahost/error.hpp"
#include "megahost/saved.hpp"

#include <ATen/ops/tensor.h>

namespace mh {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The mask is recomputed in backward; only the samples' and tokens' numbers are kept.
struct Dropout : torch::autograd::Function<Dropout> {
  struct Saved {
    double p;
    int64_t key, first_feature;
  };

  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& x,
      double p,
      int64_t key,
      const at::Tensor& samples,
      const at::Tensor& tokens,
      int64_t first_feature
  ) {
    ctx->save_for_backward({samples, tokens});
    save(ctx, Saved{p, key, first_feature});
    return ops::dropout(x, p, key, samples, tokens, first_feature);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto& [p, key, first_feature] = get_saved<Saved>(ctx);
    at::Tensor dx = ops::dropout(gradients[0], p, key, saved[0], saved[1], first_feature);
    return {dx, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

} // namespace

int64_t dropout_key(uint64_t site, const StepContext& context) {
  return static_cast<int64_t>(site ^ (context.mode().seed * 0x9e3779b97f4a7c15ULL));
}

at::Tensor sample_numbers(StepContext& context, at::Device device) {
  return context.cached("samples", [&] {
    return staged(at::tensor(context.batch().samples, at::kLong), device);
  });
}

at::Tensor dropout_at(
    const at::Tensor& x,
    double p,
    uint64_t site,
    int64_t first_feature,
    const at::Tensor& tokens,
    StepContext& context
) {
  if (p == 0 || !context.mode().training) {
    return x;
  }
  const at::Tensor samples = sample_numbers(context, x.device());
  return Dropout::apply(x, p, dropout_key(site, context), samples, tokens, first_feature);
}

at::Tensor dropout(const at::Tensor& x, Axis last, double p, uint64_t site, StepContext& context) {
  if (p == 0 || !context.mode().training) {
    return x;
  }
  const Placement placed = context.place(last);
  const Placement tokens_only = context.place(last, Tier::tokens);
  at::Tensor tokens = context.token_index();
  int64_t first_feature = 0;
  for (const auto axis : kAllMeshAxes) {
    const auto& group = context.mesh().group(axis);
    if (placed[axis] == Along{PlacementType::split, 0} &&
        tokens_only[axis].type != PlacementType::split) {
      tokens = group.slice(tokens, 0).contiguous();
    } else if (placed[axis] == Along{PlacementType::split, 2}) {
      first_feature += group.index() * x.size(2);
    }
  }
  return dropout_at(x, p, site, first_feature, tokens, context);
}

} // namespace mh
