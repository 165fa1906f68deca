// Operators that read and write where others say.

#include "core/program/stablehlo/lowering.hpp"
#include "megahost/error.hpp"

namespace mh::program::stablehlo {

namespace {

void embedding(const Call& c) {
  c.set_result(c.w.rows(c.tensor(0), c.tensor(1)));
}

void index_select(const Call& c) {
  const TypedValue x = c.tensor(0);
  MH_ASSERT(c.dim(1, x.rank()) == 0, "index_select has a lowering for its first dimension only");
  c.set_result(c.w.rows(x, c.tensor(2)));
}

void index_add(const Call& c) {
  const TypedValue x = c.operand(0);
  MH_ASSERT(c.dim(1, x.rank()) == 0, "index_add has a lowering for its first dimension only");
  TypedValue rows = c.w.convert(c.tensor(3), x.dtype);
  if (c.arguments() > 4 && c.scalar(4).toDouble() != 1) {
    rows = c.w.binary("multiply", rows, c.w.constant(c.scalar(4), rows.dtype, rows.sizes));
  }
  c.set_result(c.w.add_rows(x, c.tensor(2), rows));
}

/// The one-hot form of each row's index along the last dimension: a comparison, as devices that
/// compile programs gather slowly.
TypedValue one_hot(const Call& c, const TypedValue& x, const TypedValue& index) {
  const size_t dim = c.dim(1, x.rank());
  MH_ASSERT(
      dim + 1 == x.rank() && index.sizes[dim] == 1,
      c.op() + " has a lowering for one index of each row only"
  );
  const TypedValue places = c.w.iota(index.dtype, x.sizes, static_cast<int64_t>(dim));
  return c.w.compare("EQ", places, c.w.broadcast(index, x.sizes));
}

void gather(const Call& c) {
  const TypedValue x = c.tensor(0);
  const TypedValue zero = c.w.constant(0, x.dtype, x.sizes);
  const TypedValue kept = c.w.select(one_hot(c, x, c.tensor(2)), x, zero);
  c.set_result(c.w.reduce("add", kept, {static_cast<int64_t>(x.rank()) - 1}, 0, /*keep=*/true));
}

void scatter_add(const Call& c) {
  const TypedValue x = c.tensor(0), zero = c.w.constant(0, x.dtype, x.sizes);
  const TypedValue added = c.w.broadcast(c.w.convert(c.tensor(3), x.dtype), x.sizes);
  const TypedValue part = c.w.select(one_hot(c, x, c.tensor(2)), added, zero);
  c.set_result(c.w.binary("add", x, part));
}

} // namespace

std::span<const Lowering> index_lowerings() {
  static constexpr Lowering kRows[] = {
      {"aten::embedding", embedding},
      {"aten::gather", gather},
      {"aten::index_add", index_add},
      {"aten::index_select", index_select},
      {"aten::scatter_add", scatter_add},
  };
  return kRows;
}

} // namespace mh::program::stablehlo
