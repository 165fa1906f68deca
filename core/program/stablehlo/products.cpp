// Products of matrices.

#include "core/program/stablehlo/lowering.hpp"

namespace mh::program::stablehlo {

namespace {

void product(const Call& c) {
  c.set_result(c.w.dot(c.tensor(0), c.tensor(1), /*batch=*/0, 1, 0, c.result().sizes));
}

void batched_product(const Call& c) {
  c.set_result(c.w.dot(c.tensor(0), c.tensor(1), /*batch=*/1, 2, 1, c.result().sizes));
}

TypedValue times(const Call& c, const TypedValue& x, const at::Scalar& factor) {
  return factor.toDouble() == 1 ? x : c.w.binary("multiply", x, c.filled(factor));
}

/// beta x + alpha a b, where x counts for nothing if beta is 0.
TypedValue sum_with_product(const Call& c, int64_t batch) {
  const TypedValue ab =
      c.w.dot(c.tensor(1), c.tensor(2), batch, 1 + batch, batch, c.result().sizes);
  const TypedValue scaled = times(c, ab, c.scalar(4));
  return c.scalar(3).toDouble() == 0
             ? scaled
             : c.w.binary("add", scaled, times(c, c.operand(0), c.scalar(3)));
}

void add_product(const Call& c) {
  c.set_result(sum_with_product(c, /*batch=*/0));
}

void add_batched_product(const Call& c) {
  c.set_result(sum_with_product(c, /*batch=*/1));
}

} // namespace

std::span<const Lowering> product_lowerings() {
  static constexpr Lowering kRows[] = {
      {"aten::addmm", add_product},
      {"aten::baddbmm", add_batched_product},
      {"aten::bmm", batched_product},
      {"aten::mm", product},
  };
  return kRows;
}

} // namespace mh::program::stablehlo
