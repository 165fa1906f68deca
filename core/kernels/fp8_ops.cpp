#include "core/kernels/fp8_ops.hpp"

#include "core/kernels/gemm.hpp"
#include "core/kernels/planned_gpu.hpp"
#include "core/kernels/registration.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

namespace mh::ops {

namespace {

using at::Tensor;

at::ScalarType fp8_type(bool e5m2) {
  return e5m2 ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn;
}

Tensor largest(const Tensor& x) {
  return x.numel() == 0 ? at::zeros({}, x.options().dtype(at::kFloat))
                        : x.abs().amax().to(at::kFloat);
}

Tensor largest_meta(const Tensor& x) {
  return at::empty({}, x.options().dtype(at::kFloat));
}

void check_scale(const Tensor& scale) {
  TORCH_CHECK(
      scale.numel() == 1 && scale.scalar_type() == at::kFloat,
      "an FP8 scale is a float32 scalar; got ",
      scale.sizes(),
      " ",
      scale.scalar_type()
  );
}

Tensor rounded(const Tensor& x, const Tensor& scale, bool e5m2) {
  check_scale(scale);
  const double most = fp8_max(e5m2);
  return (x.to(at::kFloat) * scale).clamp_(-most, most).to(fp8_type(e5m2));
}

Tensor rounded_meta(const Tensor& x, const Tensor& scale, bool e5m2) {
  check_scale(scale);
  return at::empty(x.sizes(), x.options().dtype(fp8_type(e5m2)));
}

void check_product(const Tensor& a, const Tensor& b) {
  TORCH_CHECK(
      a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) && a.element_size() == 1 &&
          b.element_size() == 1,
      "fp8_product needs a [m, k] and b [k, n] in FP8; got ",
      a.sizes(),
      " ",
      a.scalar_type(),
      ", ",
      b.sizes(),
      " ",
      b.scalar_type()
  );
}

/// Every FP8 value is a bfloat16 value, and products of two are float32 values.
Tensor multiply(const Tensor& a, const Tensor& b, const Tensor& inverse) {
  check_product(a, b);
  check_scale(inverse);
  Tensor c = at::empty({a.size(0), b.size(1)}, a.options().dtype(at::kFloat));
  gemm_(c, a.to(at::kBFloat16), b.to(at::kBFloat16), /*add=*/false);
  return c.mul_(inverse);
}

Tensor multiply_meta(const Tensor& a, const Tensor& b, const Tensor& inverse) {
  check_product(a, b);
  check_scale(inverse);
  return at::empty({a.size(0), b.size(1)}, a.options().dtype(at::kFloat));
}

} // namespace

void register_fp8(Libraries& libraries) {
  libraries.definitions.def("fp8_largest(Tensor x) -> Tensor");
  libraries.definitions.def("fp8_round(Tensor x, Tensor scale, bool e5m2) -> Tensor");
  libraries.definitions.def("fp8_product(Tensor a, Tensor b, Tensor inverse) -> Tensor");
  libraries.plain.impl("fp8_largest", largest);
  libraries.plain.impl("fp8_round", rounded);
  libraries.plain.impl("fp8_product", multiply);
  libraries.meta.impl("fp8_largest", MetaForm<largest_meta, largest>::run);
  libraries.meta.impl("fp8_round", MetaForm<rounded_meta, rounded>::run);
  libraries.meta.impl("fp8_product", MetaForm<multiply_meta, multiply>::run);
}

double fp8_max(bool e5m2) {
  return e5m2 ? 57344 : 448;
}

Tensor fp8_largest(const Tensor& x) {
  static const auto op = find_op<decltype(largest)>("megahost::fp8_largest");
  return op.call(x);
}

Tensor fp8_round(const Tensor& x, const Tensor& scale, bool e5m2) {
  static const auto op = find_op<decltype(rounded)>("megahost::fp8_round");
  return op.call(x, scale, e5m2);
}

Tensor fp8_product(const Tensor& a, const Tensor& b, const Tensor& inverse) {
  static const auto op = find_op<decltype(multiply)>("megahost::fp8_product");
  return op.call(a, b, inverse);
}

} // namespace mh::ops
