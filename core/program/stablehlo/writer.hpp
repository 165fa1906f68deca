#pragma once
/// Writes StableHLO, one operation a line.
///
/// Source:  the StableHLO specification, openxla.org/stablehlo/spec

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <cstdint>
#include <string>
#include <vector>

namespace mh::program::stablehlo {

using Sizes = std::vector<int64_t>;

/// A value of the module: "%12" and its type.
struct Operand {
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
[[nodiscard]] std::string type_text(const Operand& operand);
/// "[0, 1]".
[[nodiscard]] std::string list_text(const Sizes& numbers);

/// The body of a function. Operands of an operation have one shape, and one type but for conversions:
/// callers broadcast and convert.
class Writer {
public:
  /// The function's argument of this number.
  [[nodiscard]] static Operand argument(size_t number, at::ScalarType dtype, Sizes sizes);

  Operand constant(const at::Scalar& value, at::ScalarType dtype, const Sizes& sizes = {});
  Operand constant(const at::Tensor& values);
  Operand iota(at::ScalarType dtype, const Sizes& sizes, int64_t dim);

  Operand convert(const Operand& x, at::ScalarType dtype);
  /// The same bits as another type of as many.
  Operand bitcast(const Operand& x, at::ScalarType dtype);
  Operand reshape(const Operand& x, const Sizes& sizes);
  Operand transpose(const Operand& x, const Sizes& order);
  /// As PyTorch broadcasts: sizes of 1 are repeated, missing ones are the first.
  Operand broadcast(const Operand& x, const Sizes& sizes);
  /// x[..., from:to:step, ...] along `dim`.
  Operand slice(const Operand& x, size_t dim, int64_t from, int64_t to, int64_t step = 1);
  Operand concatenate(const std::vector<Operand>& parts, size_t dim);
  /// `between`: how many go between each two elements of a dimension; none if it is empty.
  Operand
  pad(const Operand& x, double value, const Sizes& low, const Sizes& high, Sizes between = {});

  /// `op`: "negate", or with its dialect "chlo.erf".
  Operand unary(const std::string& op, const Operand& x);
  Operand binary(const std::string& op, const Operand& a, const Operand& b);
  /// `direction`: "EQ".
  Operand compare(const std::string& direction, const Operand& a, const Operand& b);
  Operand select(const Operand& which, const Operand& if_true, const Operand& if_false);
  /// `op`: "add"; `start`: what it begins with. All dimensions if none is named.
  Operand reduce(const std::string& op, const Operand& x, Sizes dims, double start, bool keep);

  /// Sums over dimension `of_a` of a and `of_b` of b, for each index of the first `batch` dimensions;
  /// types of 16 bits are summed in float32.
  Operand
  dot(const Operand& a,
      const Operand& b,
      int64_t batch,
      int64_t of_a,
      int64_t of_b,
      const Sizes& sizes);

  /// table[index, ...], which is one of a few that a scalar chooses.
  Operand row(const Operand& table, const Operand& index);
  /// x[..., start:start + size, ...] along `dim`, where a scalar is the start.
  Operand slice_at(const Operand& x, size_t dim, const Operand& start, int64_t size);

  /// A collective between replicas: op "all_reduce" with the attributes and the reducer ("add", "" for
  /// none) of its kind.
  Operand collective(
      const std::string& op,
      const Operand& x,
      const Sizes& sizes,
      const std::string& attributes,
      const std::string& reduce
  );

  /// table[ids, ...]; ids are in bounds.
  Operand rows(const Operand& table, const Operand& ids);
  /// table with rows[i] added to table[ids[i]].
  Operand add_rows(const Operand& table, const Operand& ids, const Operand& rows);

  /// An operation in full: "NAME = BODY : TYPES -> type", where `types` are those of its operands.
  Operand
  line(at::ScalarType dtype, const Sizes& sizes, const std::string& body, const std::string& types);

  [[nodiscard]] const std::string& text() const { return text_; }

private:
  Operand next(at::ScalarType dtype, const Sizes& sizes);
  /// An operation whose operands and result have one type, which is all that is said.
  Operand short_line(at::ScalarType dtype, const Sizes& sizes, const std::string& body);

  std::string text_;
  int64_t count_ = 0;
};

} // namespace mh::program::stablehlo
