// Operators that reduce dimensions.

#include "core/program/stablehlo/lowering.hpp"

#include <cmath>
#include <limits>

namespace mh::program::stablehlo {

namespace {

/// The smallest number of a type.
double lowest(at::ScalarType dtype) {
  return at::isFloatingType(dtype) ? -INFINITY
         : dtype == at::kInt       ? std::numeric_limits<int32_t>::lowest()
                                   : -9223372036854775808.0;
}

/// Whether the dimensions are named, and those that are left are kept as 1.
bool names_dims(const Call& c) {
  return c.arguments() > 1 && c.argument(1).isIntList();
}

Sizes dims_of(const Call& c) {
  return names_dims(c) || c.op().ends_with(".dim") ? c.integers(1)
                                                   : Sizes(); // else a type may follow
}

bool keeps_dims(const Call& c) {
  return c.arguments() > 2 && c.argument(2).isBool() && c.is_true(2);
}

TypedValue sum_of(const Call& c) {
  const TypedValue x = c.w.convert(c.tensor(0), c.result().dtype);
  return c.w.reduce("add", x, dims_of(c), 0, keeps_dims(c));
}

void sum(const Call& c) {
  c.set_result(sum_of(c));
}

void mean(const Call& c) {
  double of = 1;
  for (const int64_t size : c.tensor(0).sizes) {
    of *= static_cast<double>(size);
  }
  for (const int64_t size : c.result().sizes) {
    of /= static_cast<double>(size);
  }
  c.set_result(c.w.binary("multiply", sum_of(c), c.filled(1 / of)));
}

void largest(const Call& c) {
  const TypedValue x = c.tensor(0);
  c.set_result(c.w.reduce("maximum", x, dims_of(c), lowest(x.dtype), keeps_dims(c)));
}

void any(const Call& c) {
  const TypedValue x = c.w.convert(c.tensor(0), at::kBool);
  c.set_result(c.w.reduce("or", x, dims_of(c), 0, keeps_dims(c)));
}

void all(const Call& c) {
  const TypedValue x = c.w.convert(c.tensor(0), at::kBool);
  c.set_result(c.w.reduce("and", x, dims_of(c), 1, keeps_dims(c)));
}

/// The norm of order 2 of all elements.
void norm(const Call& c) {
  const TypedValue x = c.w.convert(c.tensor(0), c.result().dtype);
  c.set_result(c.w.unary("sqrt", c.w.reduce("add", c.w.binary("multiply", x, x), {}, 0, false)));
}

} // namespace

std::span<const Lowering> reduction_lowerings() {
  static constexpr Lowering kRows[] = {
      {"aten::all", all},
      {"aten::all.dim", all},
      {"aten::amax", largest},
      {"aten::any", any},
      {"aten::any.dim", any},
      {"aten::max", largest},
      {"aten::mean", mean},
      {"aten::mean.dim", mean},
      {"aten::norm.Scalar", norm},
      {"aten::sum", sum},
      {"aten::sum.dim_IntList", sum},
  };
  return kRows;
}

} // namespace mh::program::stablehlo
