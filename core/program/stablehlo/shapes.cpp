// Operators that only move elements, or number them.

#include "core/program/stablehlo/lowering.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <numeric>

namespace mh::program::stablehlo {

namespace {

void reshaped(const Call& c) {
  c.set_result(c.w.reshape(c.tensor(0), c.result().sizes));
}

void transpose(const Call& c) {
  const TypedValue x = c.tensor(0);
  Sizes order(x.rank());
  std::iota(order.begin(), order.end(), 0);
  if (c.op() == "aten::t" && x.rank() == 2) {
    std::swap(order[0], order[1]);
  } else if (c.op() == "aten::transpose.int") {
    std::swap(order[c.dim(1, x.rank())], order[c.dim(2, x.rank())]);
  }
  c.set_result(c.w.transpose(x, order));
}

void permute(const Call& c) {
  const TypedValue x = c.tensor(0);
  Sizes order = c.integers(1);
  for (int64_t& dim : order) {
    dim = dim < 0 ? dim + static_cast<int64_t>(x.rank()) : dim;
  }
  c.set_result(c.w.transpose(x, order));
}

/// The begin or end of a range of a dimension, as Python counts.
int64_t bound(const Call& c, size_t argument, int64_t otherwise, int64_t size) {
  const int64_t given = c.integer_or(argument, otherwise);
  return std::clamp<int64_t>(given < 0 ? given + size : given, 0, size);
}

void slice(const Call& c) {
  const TypedValue x = c.tensor(0);
  const size_t dim = c.dim(1, x.rank());
  if (c.varies(2) && c.integer_or(4, 1) == 1) { // begins elsewhere on each rank; its end follows
    c.ignore(3);
    c.set_result(c.w.slice_at(x, dim, c.number_of_rank(2, at::kInt), c.result().sizes[dim]));
    return;
  }
  const int64_t size = x.sizes[dim], from = bound(c, 2, 0, size);
  const int64_t to = std::max(from, bound(c, 3, size, size));
  c.set_result(c.w.slice(x, dim, from, to, c.integer_or(4, 1)));
}

void select(const Call& c) {
  const TypedValue x = c.tensor(0);
  const size_t dim = c.dim(1, x.rank());
  const int64_t given = c.integer(2), at = given < 0 ? given + x.sizes[dim] : given;
  c.set_result(c.w.reshape(c.w.slice(x, dim, at, at + 1), c.result().sizes));
}

/// Pieces of a dimension, one after the other.
void split(const Call& c, const TypedValue& x, size_t dim, bool drops_dim) {
  int64_t from = 0;
  for (size_t k = 0; k < c.results(); ++k) {
    const int64_t size = drops_dim ? 1 : c.result(k).sizes[dim];
    c.set_result(c.w.reshape(c.w.slice(x, dim, from, from + size), c.result(k).sizes), k);
    from += size;
  }
}

void split_in_sizes(const Call& c) {
  const TypedValue x = c.tensor(0);
  split(c, x, c.dim(2, x.rank()), /*drops_dim=*/false);
}

void unbind(const Call& c) {
  const TypedValue x = c.tensor(0);
  split(c, x, c.dim(1, x.rank()), /*drops_dim=*/true);
}

/// x with `part` in the place of x[..., from:from + its size, ...].
TypedValue
replaced(const Call& c, const TypedValue& x, const TypedValue& part, size_t dim, int64_t from) {
  std::vector<TypedValue> parts;
  const int64_t end = from + part.sizes[dim];
  if (from > 0) {
    parts.push_back(c.w.slice(x, dim, 0, from));
  }
  parts.push_back(part);
  if (end < x.sizes[dim]) {
    parts.push_back(c.w.slice(x, dim, end, x.sizes[dim]));
  }
  return c.w.concatenate(parts, dim);
}

void slice_scatter(const Call& c) {
  const TypedValue x = c.tensor(0), part = c.w.convert(c.tensor(1), x.dtype);
  const size_t dim = c.dim(2, x.rank());
  if (c.varies(3) && c.integer_or(5, 1) == 1) { // begins elsewhere on each rank; its end follows
    c.ignore(4);
    c.set_result(c.w.replace_at(x, dim, c.number_of_rank(3, at::kInt), part));
    return;
  }
  const int64_t from = bound(c, 3, 0, x.sizes[dim]), step = c.integer_or(5, 1);
  if (step == 1) {
    c.set_result(replaced(c, x, part, dim, from));
    return;
  }
  Sizes low(x.rank()), high(x.rank()), between(x.rank());
  low[dim] = from;
  between[dim] = step - 1;
  high[dim] = x.sizes[dim] - from - (part.sizes[dim] - 1) * step - 1;
  const TypedValue ones = c.w.constant(1, at::kBool, part.sizes);
  const TypedValue written = c.w.pad(ones, 0, low, high, between);
  c.set_result(c.w.select(written, c.w.pad(part, 0, low, high, between), x));
}

void select_scatter(const Call& c) {
  const TypedValue x = c.tensor(0);
  const size_t dim = c.dim(2, x.rank());
  Sizes sizes = x.sizes;
  sizes[dim] = 1;
  const TypedValue part = c.w.convert(c.w.reshape(c.tensor(1), sizes), x.dtype);
  c.set_result(replaced(c, x, part, dim, bound(c, 3, 0, x.sizes[dim])));
}

void concatenate(const Call& c) {
  std::vector<TypedValue> parts;
  for (const TypedValue& part : c.tensors(0)) {
    if (part.rank() ==
        c.result().sizes.size()) { // an empty list of one dimension counts for nothing
      parts.push_back(c.w.convert(part, c.result().dtype));
    }
  }
  c.set_result(c.w.concatenate(parts, c.dim(1, parts.front().rank())));
}

void stack(const Call& c) {
  Sizes sizes = c.result().sizes;
  const size_t dim = c.dim(1, sizes.size());
  sizes[dim] = 1;
  std::vector<TypedValue> parts;
  for (const TypedValue& part : c.tensors(0)) {
    parts.push_back(c.w.reshape(c.w.convert(part, c.result().dtype), sizes));
  }
  c.set_result(c.w.concatenate(parts, dim));
}

/// PyTorch names the last dimension's two sides first.
void pad(const Call& c) {
  const TypedValue x = c.tensor(0);
  const Sizes sides = c.integers(1);
  Sizes low(x.rank()), high(x.rank());
  for (size_t i = 0; i < sides.size() / 2; ++i) {
    low[x.rank() - 1 - i] = sides[2 * i];
    high[x.rank() - 1 - i] = sides[2 * i + 1];
  }
  c.set_result(c.w.pad(x, c.scalar(2).toDouble(), low, high));
}

void flip(const Call& c) {
  const TypedValue x = c.tensor(0);
  Sizes dims = c.integers(1);
  for (int64_t& dim : dims) {
    dim = dim < 0 ? dim + static_cast<int64_t>(x.rank()) : dim;
  }
  c.set_result(c.w.line(
      x.dtype,
      x.sizes,
      "stablehlo.reverse " + x.name + ", dims = " + list_text(dims),
      "(" + type_text(x) + ")"
  ));
}

/// start + step * i.
void arange(const Call& c) {
  const bool starts = c.op() != "aten::arange";
  const bool varies = starts && c.varies(0);
  const at::Scalar start = starts && !varies ? c.scalar(0) : at::Scalar(0);
  const at::Scalar step = c.op() == "aten::arange.start_step" ? c.scalar(2) : at::Scalar(1);
  TypedValue x = c.w.iota(c.result().dtype, c.result().sizes, 0);
  if (step.toDouble() != 1) {
    x = c.w.binary("multiply", x, c.filled(step));
  }
  if (varies) { // where it ends follows
    c.ignore(1);
    x = c.w.binary("add", x, c.as_result(c.number_of_rank(0, x.dtype)));
  }
  c.set_result(start.toDouble() == 0 ? x : c.w.binary("add", x, c.filled(start)));
}

/// Zero above or below a diagonal.
void triangle(const Call& c) {
  const TypedValue x = c.tensor(0);
  const auto rank = static_cast<int64_t>(x.rank());
  const TypedValue row = c.w.iota(at::kInt, x.sizes, rank - 2);
  const TypedValue column = c.w.iota(at::kInt, x.sizes, rank - 1);
  const TypedValue diagonal = c.w.binary("add", row, c.w.constant(c.integer(1), at::kInt, x.sizes));
  const TypedValue kept = c.w.compare(c.op() == "aten::tril" ? "LE" : "GE", column, diagonal);
  c.set_result(c.w.select(kept, x, c.filled(0)));
}

} // namespace

std::span<const Lowering> shape_lowerings() {
  static constexpr Lowering kRows[] = {
      {"aten::_reshape_alias", reshaped},
      {"aten::_unsafe_view", reshaped},
      {"aten::arange", arange},
      {"aten::arange.start", arange},
      {"aten::arange.start_step", arange},
      {"aten::cat", concatenate},
      {"aten::constant_pad_nd", pad},
      {"aten::flip", flip},
      {"aten::permute", permute},
      {"aten::select.int", select},
      {"aten::select_scatter", select_scatter},
      {"aten::slice.Tensor", slice},
      {"aten::slice_scatter", slice_scatter},
      {"aten::split.Tensor", split_in_sizes},
      {"aten::split_with_sizes", split_in_sizes},
      {"aten::squeeze", reshaped},
      {"aten::squeeze.dim", reshaped},
      {"aten::squeeze.dims", reshaped},
      {"aten::stack", stack},
      {"aten::t", transpose},
      {"aten::transpose.int", transpose},
      {"aten::tril", triangle},
      {"aten::triu", triangle},
      {"aten::unbind.int", unbind},
      {"aten::unsqueeze", reshaped},
      {"aten::view", reshaped},
  };
  return kRows;
}

} // namespace mh::program::stablehlo
