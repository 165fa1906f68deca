#include "core/kernels/meta.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

namespace mh::ops {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

Tensor index_select(const Tensor& self, int64_t dim, const Tensor& index) {
  auto sizes = self.sizes().vec();
  sizes[at::maybe_wrap_dim(dim, self.dim())] = index.numel();
  return at::empty(sizes, self.options());
}

/// Statistics keep the outer dimensions, 1 for the normalised ones.
Tensor statistics(const Tensor& input, at::IntArrayRef normalised) {
  auto sizes = input.sizes().vec();
  std::fill(sizes.end() - static_cast<int64_t>(normalised.size()), sizes.end(), 1);
  return at::empty(sizes, input.options());
}

Triple native_layer_norm(
    const Tensor& input,
    at::IntArrayRef normalised,
    const OptionalTensor&,
    const OptionalTensor&,
    double
) {
  return {
      at::empty(input.sizes(), input.options()),
      statistics(input, normalised),
      statistics(input, normalised)};
}

Triple native_layer_norm_backward(
    const Tensor&,
    const Tensor& input,
    at::IntArrayRef,
    const Tensor&,
    const Tensor&,
    const OptionalTensor& weight,
    const OptionalTensor& bias,
    std::array<bool, 3> wanted
) {
  return {
      wanted[0] ? at::empty(input.sizes(), input.options()) : Tensor(),
      wanted[1] && weight ? at::empty_like(*weight) : Tensor(),
      wanted[2] && bias ? at::empty_like(*bias) : Tensor()};
}

/// The CPU kernel makes its output as [batch, seq, heads, dim] and shows it transposed.
Pair flash_attention(const Tensor& q, const Tensor&, const Tensor&, double, bool, const OptionalTensor&, std::optional<double>) {
  const Tensor out = at::empty({q.size(0), q.size(2), q.size(1), q.size(3)}, q.options());
  const auto statistics_type = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor lse =
      at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(statistics_type));
  return {out.transpose(1, 2), lse.transpose(1, 2)};
}

Triple
flash_attention_backward(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor&, const Tensor&, double, bool, const OptionalTensor&, std::optional<double>) {
  const auto like = [](const Tensor& t) {
    return at::empty({t.size(0), t.size(2), t.size(1), t.size(3)}, t.options()).transpose(1, 2);
  };
  return {like(q), like(k), like(v)};
}

} // namespace

void register_meta_shapes(torch::Library& aten) {
  aten.impl("index_select", index_select);
  aten.impl("native_layer_norm", native_layer_norm);
  aten.impl("native_layer_norm_backward", native_layer_norm_backward);
  aten.impl("_scaled_dot_product_flash_attention_for_cpu", flash_attention);
  aten.impl("_scaled_dot_product_flash_attention_for_cpu_backward", flash_attention_backward);
}

} // namespace mh::ops
