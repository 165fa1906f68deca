#include "gated_norm.hpp"

#include "rows_at_once.hpp"

#include <megahost/error.hpp>
#include <megahost/saved.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace mh::hybrid {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The groups as forward and backward use them.
struct Groups {
  int64_t count;                   // on this rank
  const std::vector<Group>* parts; // as GatedNorm has them

  /// [rows, batch, heads] -> [rows, batch, groups, elements], no copy
  [[nodiscard]] at::Tensor of(const at::Tensor& x) const { return x.unflatten(-1, {count, -1}); }

  /// Means of rows' parts -> of whole groups, in place.
  void complete(const at::Tensor& ret_means) const {
    for (const Group& group : *parts) {
      group.all_reduce(ret_means);
      ret_means.div_(group.size());
    }
  }
};

template <class Visit>
void by_rows(int64_t rows, int64_t at_once, const Visit& visit) {
  for (int64_t first = 0; first < rows; first += at_once) {
    visit([&, first](const at::Tensor& x) {
      return x.narrow(0, first, std::min(at_once, rows - first));
    });
  }
}

struct NormGated : torch::autograd::Function<NormGated> {
  struct Saved {
    Groups groups;
    int64_t at_once; // rows
  };

  /// The tensor that is gated: y + skip x, [rows, batch, heads * dim].
  static at::Tensor summed(const at::Tensor& y, const at::Tensor& x, const at::Tensor& skip) {
    return at::addcmul(y, x.to(y.scalar_type()), skip.unsqueeze(-1)).flatten(2);
  }

  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& y,
      const at::Tensor& x,
      const at::Tensor& skip,
      const at::Tensor& z,
      const at::Tensor& weight,
      double eps,
      const Saved& how
  ) {
    const auto& [groups, at_once] = how;
    const auto wide = y.scalar_type();
    const at::Tensor wide_skip = skip.to(wide), wide_weight = groups.of(weight.to(wide));
    const at::Tensor rstd = at::empty({y.size(0), y.size(1), groups.count, 1}, y.options());
    const auto gated = [&](const auto& rows) {
      const at::Tensor sum = summed(rows(y), rows(x), wide_skip);
      return groups.of(at::silu(rows(z).to(wide)).mul_(sum));
    };
    by_rows(y.size(0), at_once, [&](const auto& rows) {
      rows(rstd).copy_(gated(rows).square_().mean(-1, /*keepdim=*/true));
    });
    groups.complete(rstd);
    rstd.add_(eps).rsqrt_();
    at::Tensor out = at::empty(z.sizes(), z.options());
    by_rows(y.size(0), at_once, [&](const auto& rows) {
      rows(out).copy_(gated(rows).mul_(rows(rstd)).mul_(wide_weight).flatten(2));
    });
    ctx->save_for_backward({y, x, skip, z, weight, rstd});
    save(ctx, how);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &y = saved[0], &x = saved[1], &skip = saved[2], &z = saved[3];
    const at::Tensor &weight = saved[4], &rstd = saved[5];
    const auto& [groups, at_once] = get_saved<Saved>(ctx);
    const auto wide = y.scalar_type();
    const at::Tensor wide_skip = skip.to(wide), wide_weight = groups.of(weight.to(wide));
    const at::Tensor dweight = at::zeros(weight.sizes(), y.options());
    const at::Tensor means = at::empty(rstd.sizes(), rstd.options()); // means of gradient * normal
    by_rows(y.size(0), at_once, [&](const auto& rows) {
      const at::Tensor sum = summed(rows(y), rows(x), wide_skip);
      const at::Tensor normal = groups.of(at::silu(rows(z).to(wide)).mul_(sum)).mul_(rows(rstd));
      const at::Tensor product = normal.mul_(groups.of(rows(gradients[0]).to(wide)));
      dweight.add_(product.sum(at::IntArrayRef{0, 1}).flatten());
      rows(means).copy_(product.mul_(wide_weight).mean(-1, /*keepdim=*/true));
    });
    groups.complete(means);
    const at::Tensor dy = at::empty_like(y, at::MemoryFormat::Contiguous);
    const at::Tensor dx = at::empty(x.sizes(), x.options()), dz = at::empty(z.sizes(), z.options());
    const at::Tensor dskip = at::zeros(skip.sizes(), y.options());
    by_rows(y.size(0), at_once, [&](const auto& rows) {
      const at::Tensor sum = summed(rows(y), rows(x), wide_skip);
      const at::Tensor wide_z = rows(z).to(wide), gate = at::silu(wide_z);
      const at::Tensor normal = groups.of(gate * sum).mul_(rows(rstd));
      const at::Tensor scaled = groups.of(rows(gradients[0]).to(wide)) * wide_weight;
      const at::Tensor du = scaled.sub_(normal.mul_(rows(means))).mul_(rows(rstd)).flatten(2);
      rows(dz).copy_(at::silu_backward(sum.mul_(du), wide_z));
      const at::Tensor dsum = gate.mul_(du).view(rows(y).sizes());
      rows(dy).copy_(dsum);
      rows(dx).copy_(dsum * wide_skip.unsqueeze(-1));
      dskip.add_((dsum * rows(x)).sum(-1).sum(at::IntArrayRef{0, 1}));
    });
    return {
        dy,
        dx,
        dskip.to(skip.scalar_type()),
        dz,
        dweight.to(weight.scalar_type()),
        at::Tensor(),
        at::Tensor()};
  }
};

} // namespace

GatedNorm::GatedNorm(Builder& builder, Axis heads, int64_t groups, double eps)
    : eps_(eps)
    , groups_(groups)
    , weight_(&builder.parameter({{"weight", {heads}, Init::ones()}}, builder.place(heads))) {
  for (const auto axis : kAllMeshAxes) {
    const int64_t ranks = builder.mesh().size(axis);
    if (ranks == 1 || !builder.rules().maps(heads.logical, axis)) {
      continue;
    }
    if (groups_ % ranks == 0) {
      groups_ /= ranks;
      continue;
    }
    if (ranks % groups_ != 0) {
      throw Error(
          "the " + std::to_string(groups) + " groups of `" + builder.global_name("weight") +
              "` are neither divisible by the " + std::to_string(ranks) + " ranks of " +
              std::string(to_string(axis)) + " nor these by them",
          "choose a number of groups or ranks that divides the other"
      );
    }
    parts_.push_back(builder.mesh().group(axis, ranks / groups_));
    groups_ = 1;
  }
}

at::Tensor GatedNorm::forward(
    const at::Tensor& y,
    const at::Tensor& x,
    const at::Tensor& skip,
    const at::Tensor& z,
    at::DeviceType target
) const {
  const NormGated::Saved how{{groups_, &parts_}, rows_at_once(target)};
  return NormGated::apply(y, x, skip, z, weight_->value, eps_, how);
}

} // namespace mh::hybrid
