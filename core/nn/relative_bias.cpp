#include "megahost/nn/relative_bias.hpp"

#include "megahost/saved.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace mh {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Columns of the table by bucket; their gradients go straight into the main gradient.
struct Columns : torch::autograd::Function<Columns> {
  struct Saved {
    Parameter* parameter;
  };

  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& weight,
      const at::Tensor& buckets,
      Parameter* parameter
  ) {
    ctx->save_for_backward({buckets});
    save(ctx, Saved{parameter});
    const auto wide = weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    return at::index_select(weight.to(wide), 1, buckets);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const at::Tensor buckets = ctx->get_saved_variables()[0];
    get_saved<Saved>(ctx).parameter->add_gradient([&](const at::Tensor& sum) {
      sum.index_add_(1, buckets, gradients[0].to(sum.scalar_type()));
    });
    return {at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

Parameter& table_of(Builder& builder, int64_t heads, const RelativeBiasSpec& spec) {
  if (!spec.table.empty()) {
    return builder.shared(spec.table);
  }
  const Axis of_heads{axis::heads, heads}, buckets{{"buckets"}, spec.buckets};
  return builder.parameter(
      {{"weight", {of_heads, buckets}, Init::normal(spec.std)}}, builder.place(of_heads)
  );
}

} // namespace

int64_t relative_bucket(int64_t distance, const RelativeBiasSpec& spec) {
  int64_t first = 0, buckets = spec.buckets, far = std::max<int64_t>(0, -distance);
  if (spec.bidirectional) {
    buckets /= 2;
    first = distance > 0 ? buckets : 0;
    far = std::abs(distance);
  }
  const int64_t exact = buckets / 2;
  if (far < exact) {
    return first + far;
  }
  // The reference computes in float32, and at the edges of buckets the last bit decides.
  const float share =
      std::log(static_cast<float>(far) / static_cast<float>(exact)) /
      static_cast<float>(
          std::log(static_cast<double>(spec.max_distance) / static_cast<double>(exact))
      );
  const auto more = static_cast<int64_t>(share * static_cast<float>(buckets - exact));
  return first + std::min(exact + more, buckets - 1);
}

RelativeBias::RelativeBias(Builder& builder, int64_t heads, const RelativeBiasSpec& spec)
    : spec_(spec)
    , weight_(&table_of(builder, heads, spec)) {}

at::Tensor RelativeBias::forward(int64_t length, StepContext& context) const {
  const std::string key = "relative buckets " + std::to_string(length) + " " +
                          std::to_string(spec_.buckets) + " " + std::to_string(spec_.max_distance) +
                          " " + std::to_string(spec_.bidirectional);
  const at::Tensor& buckets = context.cached(key, [&] {
    std::vector<int64_t> all;
    for (int64_t distance = 1 - length; distance < length; ++distance) {
      all.push_back(relative_bucket(distance, spec_));
    }
    return at::tensor(all, at::TensorOptions().dtype(at::kLong)).to(weight_->value.device());
  });
  return Columns::apply(weight_->value, buckets, weight_);
}

} // namespace mh
