#include "core/meta/shapes.hpp"

#include <ATen/Context.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/result_type.h>
#include <torch/library.h>

#include <cmath>

namespace mh::ops {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

Tensor index_select_meta(const Tensor& self, int64_t dim, const Tensor& index) {
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
Pair cpu_flash_attention(const Tensor& q, const Tensor&, const Tensor&, double, bool, const OptionalTensor&, std::optional<double>) {
  const Tensor out = at::empty({q.size(0), q.size(2), q.size(1), q.size(3)}, q.options());
  const auto statistics_type = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor lse =
      at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(statistics_type));
  return {out.transpose(1, 2), lse.transpose(1, 2)};
}

Triple
cpu_flash_attention_backward(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor&, const Tensor&, double, bool, const OptionalTensor&, std::optional<double>) {
  const auto like = [](const Tensor& t) {
    return at::empty({t.size(0), t.size(2), t.size(1), t.size(3)}, t.options()).transpose(1, 2);
  };
  return {like(q), like(k), like(v)};
}

/// GPU kernels make their results as [batch, seq, heads, dim], dense in the input's order.
Tensor as_kernels_make(const Tensor& x) {
  return at::empty_like(x.transpose(1, 2)).transpose(1, 2);
}

Tensor log_sums(const Tensor& q) {
  return at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
}

using Flash =
    std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

Flash gpu_flash_attention(const Tensor& q, const Tensor& k, const Tensor&, double, bool, bool, std::optional<double>) {
  const Tensor none = at::empty({0}, q.options());
  const Tensor random = at::empty({2}, q.options().dtype(at::kLong));
  return {
      as_kernels_make(q),
      log_sums(q),
      Tensor(),
      Tensor(),
      q.size(2),
      k.size(2),
      random,
      random,
      none};
}

/// While the kernel runs, q's gradient is summed in float32, of whole tiles, and query heads that
/// share a key head have gradients of it each.
Triple
gpu_flash_attention_backward(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor&, const Tensor&, const Tensor&, const Tensor&, c10::SymInt, c10::SymInt, double, bool, const Tensor&, const Tensor&, std::optional<double>) {
  const auto whole = [](int64_t length, int64_t tile) { return (length + tile - 1) / tile * tile; };
  const auto wide = q.options().dtype(at::kFloat);
  const int64_t rows = whole(q.size(2), 128), heads = q.size(1);
  const Tensor sums = at::empty({q.size(0), rows, heads, whole(q.size(3), 32)}, wide);
  const Tensor products = at::empty({q.size(0), heads, rows}, wide);
  const Tensor shared =
      at::empty({heads == k.size(1) ? 0 : 2, q.size(0), k.size(2), heads, k.size(3)}, k.options());
  return {as_kernels_make(q), as_kernels_make(k), as_kernels_make(v)};
}

using Quintuple = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using OptionalInt = std::optional<c10::SymInt>;

/// [batch, seq, heads, dim], or [tokens, heads, dim] of sequences whose ends are given.
Quintuple
flash_forward(const Tensor& q, const Tensor&, const Tensor&, const OptionalTensor& ends, const OptionalTensor&, c10::SymInt, c10::SymInt, double, bool, bool, std::optional<double>, OptionalInt, OptionalInt, const OptionalTensor&, const OptionalTensor&) {
  const auto wide = q.options().dtype(at::kFloat);
  return {
      at::empty_like(q),
      ends ? at::empty({q.size(1), q.size(0)}, wide)
           : at::empty({q.size(0), q.size(2), q.size(1)}, wide),
      at::empty({2}, q.options().dtype(at::kUInt64)),
      at::empty({}, q.options().dtype(at::kUInt64)),
      at::empty({0}, q.options())};
}

/// See gpu_flash_attention_backward; sequences that follow one another lie 128 rows apart. Sums of
/// deterministic ones are kept by block of a GPU's 132.
Triple flash_backward(
    const Tensor& dout,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& out,
    const Tensor&,
    const Tensor& ends,
    const Tensor&,
    c10::SymInt longest,
    c10::SymInt,
    double,
    bool,
    const Tensor&,
    const Tensor&,
    std::optional<double>,
    OptionalInt,
    OptionalInt
) {
  const auto whole = [](int64_t length, int64_t tile) { return (length + tile - 1) / tile * tile; };
  const auto wide = q.options().dtype(at::kFloat);
  const Tensor order = dout.contiguous(), results = out.contiguous();
  const int64_t heads = q.size(-2), dim = q.size(-1), key_heads = k.size(-2);
  const int64_t sequences = ends.defined() ? ends.size(0) - 1 : q.size(0);
  const int64_t rows =
      ends.defined() ? q.size(0) + 128 * sequences : sequences * whole(longest.expect_int(), 128);
  const bool ordered = at::globalContext().deterministicAlgorithms();
  const int64_t blocks = ordered ? (132 + sequences * heads - 1) / (sequences * heads) : 1;
  const Tensor sums = at::empty({blocks, rows, heads, whole(dim, dim <= 128 ? 32 : 64)}, wide);
  const Tensor products = at::empty({heads, rows}, wide);
  const Tensor shared = at::empty(
      {heads == key_heads ? 0 : 2, k.numel() / (key_heads * dim), heads, dim}, k.options()
  );
  return {at::empty_like(q), at::empty_like(k), at::empty_like(v)};
}

/// LibTorch makes an empty tensor and lets it grow, which no allocator sees.
Tensor arange_step(
    const at::Scalar& start,
    const at::Scalar& end,
    const at::Scalar& step,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pinned
) {
  const bool whole = start.isIntegral(true) && end.isIntegral(true) && step.isIntegral(true);
  const double count = std::ceil((end.toDouble() - start.toDouble()) / step.toDouble());
  const auto options = at::TensorOptions()
                           .dtype(dtype.value_or(whole ? at::kLong : at::kFloat))
                           .layout(layout)
                           .device(device)
                           .pinned_memory(pinned);
  return at::empty({static_cast<int64_t>(count)}, options);
}

Tensor like(const Tensor& x) {
  return at::empty_like(x);
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  const auto sizes = at::infer_size(at::infer_size(condition.sizes(), a.sizes()), b.sizes());
  return at::empty(sizes, a.options().dtype(at::result_type(a, b)));
}

} // namespace

void register_meta_shapes(torch::Library& aten) {
  aten.impl("index_select", index_select_meta);
  aten.impl("native_layer_norm", native_layer_norm);
  aten.impl("native_layer_norm_backward", native_layer_norm_backward);
  aten.impl("_scaled_dot_product_flash_attention_for_cpu", cpu_flash_attention);
  aten.impl("_scaled_dot_product_flash_attention_for_cpu_backward", cpu_flash_attention_backward);
  aten.impl("_scaled_dot_product_flash_attention", gpu_flash_attention);
  aten.impl("_scaled_dot_product_flash_attention_backward", gpu_flash_attention_backward);
  aten.impl("_flash_attention_forward", flash_forward);
  aten.impl("_flash_attention_backward", flash_backward);
  aten.impl("where.self", where);
  aten.impl("arange.start_step", arange_step);
  aten.impl(
      "arange.start",
      [](const at::Scalar& start,
         const at::Scalar& end,
         std::optional<at::ScalarType> dtype,
         std::optional<at::Layout> layout,
         std::optional<at::Device> device,
         std::optional<bool> pinned) {
        return arange_step(start, end, 1, dtype, layout, device, pinned);
      }
  );
  aten.impl(
      "arange",
      [](const at::Scalar& end,
         std::optional<at::ScalarType> dtype,
         std::optional<at::Layout> layout,
         std::optional<at::Device> device,
         std::optional<bool> pinned) {
        return arange_step(0, end, 1, dtype, layout, device, pinned);
      }
  );
  aten.impl("flip", [](const Tensor& x, at::IntArrayRef) { return like(x); });
  aten.impl("roll", [](const Tensor& x, at::IntArrayRef, at::IntArrayRef) { return like(x); });
}

} // namespace mh::ops
