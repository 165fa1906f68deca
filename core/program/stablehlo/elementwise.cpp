// Operators that make each element of their result from the same element of their operands.

#include "core/program/stablehlo/lowering.hpp"

namespace mh::program::stablehlo {

namespace {

// Names of operations, as arguments of the templates below.
template <size_t N>
struct Name {
  constexpr Name(const char (&text)[N]) { // NOLINT: a literal is meant
    std::copy_n(text, N, value);
  }

  char value[N];
};

template <Name Op>
void unary(const Call& c) {
  c.set_result(c.w.unary(Op.value, c.as_result(c.tensor(0))));
}

template <Name Op>
void binary(const Call& c) {
  c.set_result(c.w.binary(Op.value, c.operand(0), c.operand(1)));
}

/// Compares operands in their common type.
template <Name Direction>
void compare(const Call& c) {
  const TypedValue x = c.tensor(0);
  const TypedValue y = c.has(1)      ? c.tensor(1)
                       : c.varies(1) ? c.number_of_rank(1, x.dtype)
                                     : c.w.constant(c.scalar(1), x.dtype);
  const auto common = c10::promoteTypes(x.dtype, y.dtype);
  const auto wide = [&](const TypedValue& one) {
    return c.w.broadcast(c.w.convert(one, common), c.result().sizes);
  };
  c.set_result(c.w.compare(Direction.value, wide(x), wide(y)));
}

/// x op alpha * y.
template <Name Op>
void scaled(const Call& c) {
  TypedValue y = c.operand(1);
  if (c.arguments() > 2 && c.scalar(2).toDouble() != 1) {
    y = c.w.binary("multiply", y, c.filled(c.scalar(2)));
  }
  c.set_result(c.w.binary(Op.value, c.operand(0), y));
}

void subtract_from(const Call& c) {
  c.set_result(c.w.binary("subtract", c.operand(1), c.operand(0)));
}

void reciprocal(const Call& c) {
  c.set_result(c.w.binary("divide", c.filled(1), c.operand(0)));
}

void power(const Call& c) {
  const TypedValue x = c.operand(0);
  const double exponent = c.has(1) ? 0 : c.scalar(1).toDouble();
  c.set_result(
      exponent == 2     ? c.w.binary("multiply", x, x)
      : exponent == 0.5 ? c.w.unary("sqrt", x)
                        : c.w.binary("power", x, c.operand(1))
  );
}

void choose(const Call& c) {
  const TypedValue which = c.w.broadcast(c.tensor(0), c.result().sizes);
  c.set_result(c.w.select(which, c.operand(1), c.operand(2)));
}

void fill_where(const Call& c) {
  const TypedValue which = c.w.broadcast(c.tensor(1), c.result().sizes);
  c.set_result(c.w.select(which, c.operand(2), c.operand(0)));
}

void threshold_backward(const Call& c) {
  const TypedValue above = c.w.compare("GT", c.operand(1), c.filled(c.scalar(2)));
  c.set_result(c.w.select(above, c.operand(0), c.filled(0)));
}

void clamp(const Call& c) {
  TypedValue x = c.operand(0);
  if (c.has(1) || !c.argument(1).isNone()) {
    x = c.w.binary("maximum", x, c.operand(1));
  }
  if (c.has(2) || !c.argument(2).isNone()) {
    x = c.w.binary("minimum", x, c.operand(2));
  }
  c.set_result(x);
}

/// Rounds down to a whole number, of either sign; `rest` is what is left of x.
std::pair<TypedValue, TypedValue>
divide_down(const Call& c, const TypedValue& x, const TypedValue& y) {
  TypedValue whole = c.w.binary("divide", x, y);
  const TypedValue zero = c.w.constant(0, x.dtype, x.sizes),
                   one = c.w.constant(1, x.dtype, x.sizes);
  if (at::isFloatingType(x.dtype)) {
    whole = c.w.unary("floor", whole);
  } else {
    const TypedValue left = c.w.binary("subtract", x, c.w.binary("multiply", whole, y));
    const TypedValue inexact = c.w.compare("NE", left, zero);
    const TypedValue apart =
        c.w.compare("NE", c.w.compare("LT", left, zero), c.w.compare("LT", y, zero));
    whole =
        c.w.select(c.w.binary("and", inexact, apart), c.w.binary("subtract", whole, one), whole);
  }
  return {whole, c.w.binary("subtract", x, c.w.binary("multiply", whole, y))};
}

void floor_divide(const Call& c) {
  c.set_result(divide_down(c, c.operand(0), c.operand(1)).first);
}

void remainder(const Call& c) {
  c.set_result(divide_down(c, c.operand(0), c.operand(1)).second);
}

/// The same values in the type of the result.
void same(const Call& c) {
  c.set_result(c.as_result(c.tensor(0)));
}

void copy(const Call& c) {
  c.set_result(c.as_result(c.tensor(1)));
}

void same_bits(const Call& c) {
  c.set_result(c.w.bitcast(c.tensor(0), c.result().dtype));
}

void fill(const Call& c) {
  c.set_result(c.operand(1));
}

void zeros(const Call& c) {
  c.set_result(c.filled(0));
}

void ones(const Call& c) {
  c.set_result(c.filled(1));
}

void scalar_tensor(const Call& c) {
  c.set_result(c.filled(c.scalar(0)));
}

} // namespace

std::span<const Lowering> elementwise_lowerings() {
  static constexpr Lowering kRows[] = {
      {"aten::_to_copy", same},
      {"aten::abs", unary<"abs">},
      {"aten::add.Scalar", scaled<"add">},
      {"aten::add.Tensor", scaled<"add">},
      {"aten::add_.Tensor", scaled<"add">},
      {"aten::alias", same},
      {"aten::bitwise_and.Scalar", binary<"and">},
      {"aten::bitwise_and.Tensor", binary<"and">},
      {"aten::bitwise_not", unary<"not">},
      {"aten::bitwise_or.Scalar", binary<"or">},
      {"aten::bitwise_or.Tensor", binary<"or">},
      {"aten::bitwise_right_shift.Tensor", binary<"shift_right_arithmetic">},
      {"aten::bitwise_right_shift.Tensor_Scalar", binary<"shift_right_arithmetic">},
      {"aten::bitwise_xor.Scalar", binary<"xor">},
      {"aten::bitwise_xor.Tensor", binary<"xor">},
      {"aten::ceil", unary<"ceil">},
      {"aten::clamp", clamp},
      {"aten::clamp_max", binary<"minimum">},
      {"aten::clamp_min", binary<"maximum">},
      {"aten::clone", same},
      {"aten::copy", copy},
      {"aten::copy_", copy},
      {"aten::cos", unary<"cosine">},
      {"aten::detach", same},
      {"aten::div.Scalar", binary<"divide">},
      {"aten::div.Tensor", binary<"divide">},
      {"aten::empty.memory_format", zeros},
      {"aten::empty_like", zeros},
      {"aten::empty_strided", zeros},
      {"aten::eq.Scalar", compare<"EQ">},
      {"aten::eq.Tensor", compare<"EQ">},
      {"aten::erf", unary<"chlo.erf">},
      {"aten::exp", unary<"exponential">},
      {"aten::expand", same},
      {"aten::fill.Scalar", fill},
      {"aten::fill.Tensor", fill},
      {"aten::fill_.Scalar", fill},
      {"aten::floor", unary<"floor">},
      {"aten::floor_divide", floor_divide},
      {"aten::floor_divide.Scalar", floor_divide},
      {"aten::full", fill},
      {"aten::full_like", fill},
      {"aten::ge.Scalar", compare<"GE">},
      {"aten::ge.Tensor", compare<"GE">},
      {"aten::gt.Scalar", compare<"GT">},
      {"aten::gt.Tensor", compare<"GT">},
      {"aten::le.Scalar", compare<"LE">},
      {"aten::le.Tensor", compare<"LE">},
      {"aten::lift_fresh", same},
      {"aten::log", unary<"log">},
      {"aten::logical_and", binary<"and">},
      {"aten::logical_not", unary<"not">},
      {"aten::logical_or", binary<"or">},
      {"aten::lt.Scalar", compare<"LT">},
      {"aten::lt.Tensor", compare<"LT">},
      {"aten::masked_fill.Scalar", fill_where},
      {"aten::masked_fill.Tensor", fill_where},
      {"aten::maximum", binary<"maximum">},
      {"aten::minimum", binary<"minimum">},
      {"aten::mul.Scalar", binary<"multiply">},
      {"aten::mul.Tensor", binary<"multiply">},
      {"aten::mul_.Tensor", binary<"multiply">},
      {"aten::ne.Scalar", compare<"NE">},
      {"aten::ne.Tensor", compare<"NE">},
      {"aten::neg", unary<"negate">},
      {"aten::new_empty", zeros},
      {"aten::new_empty_strided", zeros},
      {"aten::new_zeros", zeros},
      {"aten::ones", ones},
      {"aten::ones_like", ones},
      {"aten::pow.Scalar", binary<"power">},
      {"aten::pow.Tensor_Scalar", power},
      {"aten::pow.Tensor_Tensor", binary<"power">},
      {"aten::reciprocal", reciprocal},
      {"aten::remainder.Scalar", remainder},
      {"aten::remainder.Tensor", remainder},
      {"aten::rsqrt", unary<"rsqrt">},
      {"aten::rsub.Scalar", subtract_from},
      {"aten::scalar_tensor", scalar_tensor},
      {"aten::sigmoid", unary<"logistic">},
      {"aten::sign", unary<"sign">},
      {"aten::sin", unary<"sine">},
      {"aten::sqrt", unary<"sqrt">},
      {"aten::sub.Scalar", scaled<"subtract">},
      {"aten::sub.Tensor", scaled<"subtract">},
      {"aten::sub_.Tensor", scaled<"subtract">},
      {"aten::tanh", unary<"tanh">},
      {"aten::threshold_backward", threshold_backward},
      {"aten::view.dtype", same_bits},
      {"aten::where.self", choose},
      {"aten::zero", zeros},
      {"aten::zero_", zeros},
      {"aten::zeros", zeros},
      {"aten::zeros_like", zeros},
  };
  return kRows;
}

} // namespace mh::program::stablehlo
