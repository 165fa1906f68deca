#include "megahost/nn/embedding.hpp"

#include "core/kernels/ops.hpp"
#include "core/model/conserved.hpp"
#include "megahost/checking.hpp"
#include "megahost/error.hpp"
#include "megahost/saved.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/index_select.h>
#include <ATen/record_function.h>

namespace mh {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Looks rows up and adds their gradients straight into the main gradient. Ids below 0 give zeros.
struct Lookup : torch::autograd::Function<Lookup> {
  struct Saved {
    Parameter* parameter;
  };

  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& weight,
      const at::Tensor& ids,
      bool masked,
      Parameter* parameter
  ) {
    ctx->save_for_backward({ids});
    save(ctx, Saved{parameter});
    const at::Tensor flat = ids.reshape({-1});
    at::Tensor rows = at::index_select(weight, 0, masked ? flat.clamp_min(0) : flat);
    if (masked) {
      rows.mul_(flat.ge(0).unsqueeze(1));
    }
    return rows.view({ids.size(0), ids.size(1), weight.size(1)});
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const at::Tensor ids = ctx->get_saved_variables()[0].reshape({-1}).contiguous();
    get_saved<Saved>(ctx).parameter->add_gradient([&](const at::Tensor& sum) {
      ops::embedding_add_(sum, ids, gradients[0].reshape({-1, sum.size(1)}));
    });
    return {at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

} // namespace

void Embedding::place(Builder& builder, Axis rows) {
  made_ = builder.place(embed_, Tier::tokens);
  for (const auto axis : kAllMeshAxes) {
    if (builder.mesh().size(axis) > 1 && builder.rules().maps(rows.logical, axis)) {
      made_[axis] = {PlacementType::partial, 0};
      split_ = true;
    }
  }
}

Embedding::Embedding(Builder& builder, Axis rows, Axis embed, double std)
    : embed_(embed) {
  place(builder, rows);
  weight_ = &builder.parameter({{"weight", {rows, embed}, Init::normal(std)}}, made_);
  first_ = weight_->pieces[0].offset[0];
  rows_ = weight_->pieces[0].shape[0];
}

Embedding::Embedding(Builder& builder, Axis rows, Axis embed, Parameter& weight)
    : weight_(&weight)
    , embed_(embed)
    , first_(weight.pieces[0].offset[0])
    , rows_(weight.pieces[0].shape[0]) {
  place(builder, rows);
}

at::Tensor Embedding::forward(const at::Tensor& ids, StepContext& context) const {
  RECORD_USER_SCOPE("embedding");
  at::Tensor local = ids;
  if (split_) {
    const at::Tensor shifted = ids - first_;
    local = shifted.masked_fill(shifted.ge(rows_).bitwise_or(shifted.lt(0)), -1);
  }
  const at::Tensor rows = Lookup::apply(weight_->value, local, split_, weight_);
  const Placement placed = context.place(embed_);
  const at::Tensor y = convert(rows, made_, placed, context.mesh());
  if (context.mode().checking) {
    const auto& layer = weight_->pieces.front().name;
    check_conversion(rows, y, made_, placed, context.mesh(), /*gradient=*/false, layer, "output");
  }
  return checked(y, placed, weight_->pieces.front().name, "output", context);
}

} // namespace mh
