#include "core/program/stablehlo/lowering.hpp"

#include "megahost/error.hpp"

#include <unordered_map>

namespace mh::program::stablehlo {

std::vector<TypedValue> Call::tensors(size_t argument) const {
  std::vector<TypedValue> all;
  for (const int64_t value : node_.inputs.at(argument)) {
    all.push_back(written_.at(value));
  }
  return all;
}

Sizes Call::integers(size_t i) const {
  const c10::IValue& value = argument(i);
  return value.isNone() ? Sizes() : value.isInt() ? Sizes{value.toInt()} : value.toIntVector();
}

size_t Call::dim(size_t i, size_t rank) const {
  const int64_t given = integer(i);
  return static_cast<size_t>(given < 0 ? given + static_cast<int64_t>(rank) : given);
}

TypedValue Call::as_result(const TypedValue& x) const {
  return w.broadcast(w.convert(x, result().dtype), result().sizes);
}

TypedValue Call::operand(size_t argument) const {
  return has(argument)      ? as_result(tensor(argument))
         : varies(argument) ? as_result(number_of_rank(argument, result().dtype))
                            : filled(scalar(argument));
}

TypedValue Call::number_of_rank(size_t i, at::ScalarType dtype) const {
  ignore(i);
  std::vector<TypedValue> numbers;
  for (const at::Scalar& number : node_.of_ranks.at(i)) {
    numbers.push_back(w.constant(number, dtype, {1}));
  }
  return w.row(w.concatenate(numbers, 0), written_.at(graph_.rank));
}

void Call::require_all_used() const {
  for (const auto& [i, numbers] : node_.of_ranks) {
    if (!used_.contains(i)) {
      throw Error(
          "ranks would need programs of their own: argument " + std::to_string(i) + " of " + op() +
              " differs between them",
          "choose a layout in which all ranks do the same"
      );
    }
  }
}

void Call::set_result(const TypedValue& x, size_t k) const {
  MH_ASSERT(
      x.sizes == result(k).sizes && x.dtype == result(k).dtype,
      op() + " was written as " + type_text(x) + ", and recorded as " +
          type_text(result(k).dtype, result(k).sizes)
  );
  written_[node_.outputs[k]] = x;
}

const Lowering* find_lowering(const std::string& op) {
  static const auto all = [] {
    std::unordered_map<std::string_view, const Lowering*> rows;
    for (const auto table :
         {elementwise_lowerings(),
          shape_lowerings(),
          product_lowerings(),
          reduction_lowerings(),
          index_lowerings(),
          collective_lowerings()}) {
      for (const Lowering& row : table) {
        rows.emplace(row.op, &row);
      }
    }
    return rows;
  }();
  const auto found = all.find(op);
  return found == all.end() ? nullptr : found->second;
}

} // namespace mh::program::stablehlo
