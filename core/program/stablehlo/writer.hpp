#pragma once
/// Writes StableHLO, one operation a line.
///
/// Source:  the StableHLO specification, openxla.org/stablehlo/spec

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace mh::program::stablehlo {

using Sizes = std::vector<int64_t>;

/// A value of the module: "%12" and its type.
struct TypedValue {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  Sizes sizes{};

  [[nodiscard]] size_t rank() const { return sizes.size(); }
};

/// "f32".
///
/// Throws:  mh::Error for a type that StableHLO has not
[[nodiscard]] std::string element_type(at::ScalarType dtype);
/// "tensor<4x8xf32>".
[[nodiscard]] std::string type_text(at::ScalarType dtype, const Sizes& sizes);
[[nodiscard]] std::string type_text(const TypedValue& operand);
/// "[0, 1]".
[[nodiscard]] std::string list_text(const Sizes& numbers);

/// The body of a function. Operands of an operation have one shape, and one type but for conversions:
/// callers broadcast and convert.
class Writer {
public:
  /// The function's argument of this number.
  [[nodiscard]] static TypedValue argument(size_t number, at::ScalarType dtype, Sizes sizes);

  TypedValue constant(const at::Scalar& value, at::ScalarType dtype, const Sizes& sizes = {});
  TypedValue constant(const at::Tensor& values);
  TypedValue iota(at::ScalarType dtype, const Sizes& sizes, int64_t dim);

  TypedValue convert(const TypedValue& x, at::ScalarType dtype);
  /// The same bits as another type of as many.
  TypedValue bitcast(const TypedValue& x, at::ScalarType dtype);
  TypedValue reshape(const TypedValue& x, const Sizes& sizes);
  TypedValue transpose(const TypedValue& x, const Sizes& order);
  /// Broadcasts as PyTorch does: sizes of 1 are repeated, missing ones are the first.
  TypedValue broadcast(const TypedValue& x, const Sizes& sizes);
  /// x[..., from:to:step, ...] along `dim`.
  TypedValue slice(const TypedValue& x, size_t dim, int64_t from, int64_t to, int64_t step = 1);
  TypedValue concatenate(const std::vector<TypedValue>& parts, size_t dim);
  /// `between`: how many go between each two elements of a dimension; none if it is empty.
  TypedValue
  pad(const TypedValue& x, double value, const Sizes& low, const Sizes& high, Sizes between = {});

  /// `op`: "negate", or with its dialect "chlo.erf".
  TypedValue unary(const std::string& op, const TypedValue& x);
  TypedValue binary(const std::string& op, const TypedValue& a, const TypedValue& b);
  /// `direction`: "EQ".
  TypedValue compare(const std::string& direction, const TypedValue& a, const TypedValue& b);
  TypedValue select(const TypedValue& which, const TypedValue& if_true, const TypedValue& if_false);
  /// `op`: "add"; `start`: what it begins with. All dimensions if none is named.
  TypedValue
  reduce(const std::string& op, const TypedValue& x, Sizes dims, double start, bool keep);

  /// Sums over dimension `of_a` of a and `of_b` of b, for each index of the first `batch` dimensions;
  /// types of 16 bits are summed in float32.
  TypedValue
  dot(const TypedValue& a,
      const TypedValue& b,
      int64_t batch,
      int64_t of_a,
      int64_t of_b,
      const Sizes& sizes);

  /// table[index, ...], which is one of a few that a scalar chooses.
  TypedValue row(const TypedValue& table, const TypedValue& index);
  /// x[..., start:start + size, ...] along `dim`, where a scalar is the start.
  TypedValue slice_at(const TypedValue& x, size_t dim, const TypedValue& start, int64_t size);

  /// x with `part` in the place of x[..., start:start + its size, ...] along `dim`.
  TypedValue
  replace_at(const TypedValue& x, size_t dim, const TypedValue& start, const TypedValue& part);

  /// A collective between replicas: op "all_reduce" with the attributes and the reducer ("add", "" for
  /// none) of its kind.
  TypedValue collective(
      const std::string& op,
      const TypedValue& x,
      const Sizes& sizes,
      const std::string& attributes,
      const std::string& reduce
  );

  /// table[ids, ...]; ids are in bounds.
  TypedValue rows(const TypedValue& table, const TypedValue& ids);
  /// table with rows[i] added to table[ids[i]].
  TypedValue add_rows(const TypedValue& table, const TypedValue& ids, const TypedValue& rows);

  /// table with rows[i] in the place of table[ids[i]].
  TypedValue put_rows(const TypedValue& table, const TypedValue& ids, const TypedValue& rows);
  /// x with values[...] in the place of x[at[..., 0], at[..., 1], ...].
  TypedValue put(const TypedValue& x, const TypedValue& at, const TypedValue& values);
  /// x in order along `dim`, equal ones in theirs, and where each was, as integers of a type.
  std::pair<TypedValue, TypedValue>
  sort(const TypedValue& x, size_t dim, bool descending, at::ScalarType integers);

  /// The values after so many rounds of `body`, which makes those of a round from its number,
  /// counted from 0, and the values before it.
  std::vector<TypedValue> repeat(
      int64_t rounds,
      const std::vector<TypedValue>& starts,
      const std::function<
          std::vector<TypedValue>(const TypedValue& round, const std::vector<TypedValue>& before)>&
          body
  );

  /// An operation in full: "NAME = BODY : TYPES -> type", where `types` are those of its operands.
  TypedValue
  line(at::ScalarType dtype, const Sizes& sizes, const std::string& body, const std::string& types);

  [[nodiscard]] const std::string& text() const { return text_; }

private:
  TypedValue next(at::ScalarType dtype, const Sizes& sizes);
  TypedValue scatter(
      const TypedValue& x,
      const TypedValue& at,
      const TypedValue& values,
      const std::string& numbers,
      const std::string& body
  );
  /// An operation whose operands and result have one type, which is all that is said.
  TypedValue short_line(at::ScalarType dtype, const Sizes& sizes, const std::string& body);

  std::string text_;
  int64_t count_ = 0;
};

} // namespace mh::program::stablehlo
