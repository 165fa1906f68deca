#pragma once
/// How operators of ATen become operations of StableHLO: tables, one for each kind of operator.

#include "core/graph/graph.hpp"
#include "core/program/stablehlo/writer.hpp"

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>

namespace mh::program::stablehlo {

/// One node while it is written.
class Call {
public:
  Call(Writer& writer, const Graph& graph, const Node& node, std::map<int64_t, TypedValue>& written)
      : w(writer)
      , graph_(graph)
      , node_(node)
      , written_(written) {}

  [[nodiscard]] const std::string& op() const { return node_.op; }

  [[nodiscard]] size_t arguments() const { return node_.arguments.size(); }

  [[nodiscard]] size_t results() const { return node_.outputs.size(); }

  /// Whether an argument holds a tensor.
  [[nodiscard]] bool has(size_t argument) const {
    const auto& values = node_.inputs.at(argument);
    return !values.empty() && values.front() >= 0;
  }

  [[nodiscard]] TypedValue tensor(size_t argument) const {
    return written_.at(node_.inputs.at(argument).at(0));
  }

  /// The tensors of a list.
  [[nodiscard]] std::vector<TypedValue> tensors(size_t argument) const;

  [[nodiscard]] const c10::IValue& argument(size_t i) const { return node_.arguments.at(i); }

  [[nodiscard]] at::Scalar scalar(size_t i) const { return argument(i).toScalar(); }

  [[nodiscard]] int64_t integer(size_t i) const { return argument(i).toInt(); }

  [[nodiscard]] int64_t integer_or(size_t i, int64_t otherwise) const {
    return argument(i).isNone() ? otherwise : argument(i).toInt();
  }

  [[nodiscard]] bool is_true(size_t i) const { return argument(i).toBool(); }

  /// One number, several or none.
  [[nodiscard]] Sizes integers(size_t i) const;

  /// A dimension of a tensor of this rank.
  [[nodiscard]] size_t dim(size_t i, size_t rank) const;

  [[nodiscard]] const GraphValue& result(size_t k = 0) const {
    return graph_.value(node_.outputs.at(k));
  }

  /// In the result's type and shape.
  [[nodiscard]] TypedValue as_result(const TypedValue& x) const;

  /// Whether an argument is another number on each rank.
  [[nodiscard]] bool varies(size_t i) const { return node_.of_ranks.contains(i); }

  /// The number for the rank that runs it, as a scalar.
  [[nodiscard]] TypedValue number_of_rank(size_t i, at::ScalarType dtype) const;

  /// The lowering knows that this argument varies, and does not need it.
  void ignore(size_t i) const { used_.insert(i); }

  /// Throws:  mh::Error if an argument varies between ranks that the lowering took for the same
  void require_all_used() const;

  /// A tensor or a number, in the result's type and shape.
  [[nodiscard]] TypedValue operand(size_t argument) const;

  [[nodiscard]] TypedValue filled(const at::Scalar& value) const {
    return w.constant(value, result().dtype, result().sizes);
  }

  /// Throws:  mh::InternalError if it is not of the shape and type that was recorded
  void set_result(const TypedValue& x, size_t k = 0) const;

  Writer& w;

private:
  const Graph& graph_;
  const Node& node_;
  std::map<int64_t, TypedValue>& written_;
  mutable std::set<size_t> used_; // arguments that vary between ranks
};

struct Lowering {
  std::string_view op; ///< "aten::add.Tensor"
  void (*write)(const Call& call);
};

[[nodiscard]] std::span<const Lowering> elementwise_lowerings();
[[nodiscard]] std::span<const Lowering> shape_lowerings();
[[nodiscard]] std::span<const Lowering> product_lowerings();
[[nodiscard]] std::span<const Lowering> reduction_lowerings();
[[nodiscard]] std::span<const Lowering> index_lowerings();
[[nodiscard]] std::span<const Lowering> collective_lowerings();

/// Null if there is none.
[[nodiscard]] const Lowering* find_lowering(const std::string& op);

} // namespace mh::program::stablehlo
