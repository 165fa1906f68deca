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

void index_copy(const Call& c) {
  const TypedValue x = c.operand(0);
  MH_ASSERT(c.dim(1, x.rank()) == 0, "index_copy has a lowering for its first dimension only");
  c.set_result(c.w.put_rows(x, c.tensor(2), c.w.convert(c.tensor(3), x.dtype)));
}

/// The one-hot forms of each row's indices along the last dimension, one for each: comparisons, as
/// devices that compile programs gather slowly.
std::vector<TypedValue> one_hots(const Call& c, const TypedValue& x, const TypedValue& index) {
  const size_t dim = c.dim(1, x.rank());
  MH_ASSERT(dim + 1 == x.rank(), c.op() + " has a lowering for indices of the last dimension only");
  const TypedValue places = c.w.iota(index.dtype, x.sizes, static_cast<int64_t>(dim));
  std::vector<TypedValue> hot;
  for (int64_t k = 0; k < index.sizes[dim]; ++k) {
    const TypedValue one = c.w.slice(index, dim, k, k + 1);
    hot.push_back(c.w.compare("EQ", places, c.w.broadcast(one, x.sizes)));
  }
  return hot;
}

void gather(const Call& c) {
  const TypedValue x = c.tensor(0), index = c.tensor(2);
  const auto dim = static_cast<int64_t>(x.rank()) - 1;
  std::vector<TypedValue> picked;
  const TypedValue zero = c.w.constant(0, x.dtype, x.sizes);
  for (const TypedValue& hot : one_hots(c, x, index)) {
    if (x.dtype == at::kBool) {
      const TypedValue kept = c.w.binary("and", hot, x);
      picked.push_back(c.w.reduce("or", kept, {dim}, 0, /*keep=*/true));
    } else {
      picked.push_back(c.w.reduce("add", c.w.select(hot, x, zero), {dim}, 0, /*keep=*/true));
    }
  }
  c.set_result(picked.size() == 1 ? picked.front() : c.w.concatenate(picked, x.rank() - 1));
}

/// The values that a scatter writes for the k-th index of each row, in x's shape: one number, or a tensor's.
TypedValue written(const Call& c, const TypedValue& x, size_t k) {
  if (!c.has(3)) {
    return c.w.constant(c.scalar(3), x.dtype, x.sizes);
  }
  const size_t dim = x.rank() - 1;
  const TypedValue values = c.w.convert(c.tensor(3), x.dtype);
  const auto at = static_cast<int64_t>(k);
  return c.w.broadcast(c.w.slice(values, dim, at, at + 1), x.sizes);
}

void scatter_add(const Call& c) {
  TypedValue x = c.tensor(0);
  const TypedValue zero = c.w.constant(0, x.dtype, x.sizes);
  const auto hot = one_hots(c, x, c.tensor(2));
  for (size_t k = 0; k < hot.size(); ++k) {
    x = c.w.binary("add", x, c.w.select(hot[k], written(c, x, k), zero));
  }
  c.set_result(x);
}

void scatter(const Call& c) {
  TypedValue x = c.tensor(0);
  const TypedValue index = c.tensor(2);
  const size_t dim = c.dim(1, x.rank());
  if (dim + 1 == x.rank()) {
    const auto hot = one_hots(c, x, index);
    for (size_t k = 0; k < hot.size(); ++k) {
      x = c.w.select(hot[k], written(c, x, k), x);
    }
    c.set_result(x);
    return;
  }
  Sizes each = index.sizes;
  each.push_back(1);
  std::vector<TypedValue> at;
  for (size_t d = 0; d < x.rank(); ++d) {
    const TypedValue along = c.w.iota(index.dtype, index.sizes, static_cast<int64_t>(d));
    at.push_back(c.w.reshape(d == dim ? index : along, each));
  }
  const TypedValue values = c.has(3) ? c.w.convert(c.tensor(3), x.dtype)
                                     : c.w.constant(c.scalar(3), x.dtype, index.sizes);
  c.set_result(c.w.put(x, c.w.concatenate(at, x.rank()), values));
}

void sort(const Call& c) {
  const TypedValue x = c.tensor(0);
  const auto [sorted, places] = c.w.sort(x, c.dim(2, x.rank()), c.is_true(3), c.result(1).dtype);
  c.set_result(sorted, 0);
  c.set_result(places, 1);
}

} // namespace

std::span<const Lowering> index_lowerings() {
  static constexpr Lowering kRows[] = {
      {"aten::embedding", embedding},
      {"aten::gather", gather},
      {"aten::index_add", index_add},
      {"aten::index_copy", index_copy},
      {"aten::index_select", index_select},
      {"aten::scatter.src", scatter},
      {"aten::scatter.value", scatter},
      {"aten::scatter_add", scatter_add},
      {"aten::sort.stable", sort},
  };
  return kRows;
}

} // namespace mh::program::stablehlo
