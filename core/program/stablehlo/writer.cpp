#include "core/program/stablehlo/writer.hpp"

#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "megahost/error.hpp"

#include <ATen/ops/equal.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace mh::program::stablehlo {

namespace {

/// The bits of numbers that have no decimal form.
struct SpecialBits {
  int digits; ///< in hexadecimal
  unsigned long long infinity, minus_infinity, not_a_number;
};

SpecialBits special_bits(at::ScalarType dtype) {
  return dtype == at::kDouble
             ? SpecialBits{16, 0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000}
         : dtype == at::kFloat    ? SpecialBits{8, 0x7F800000, 0xFF800000, 0x7FC00000}
         : dtype == at::kBFloat16 ? SpecialBits{4, 0x7F80, 0xFF80, 0x7FC0}
                                  : SpecialBits{4, 0x7C00, 0xFC00, 0x7E00};
}

/// A number as MLIR reads it back bit by bit.
std::string number_text(const at::Scalar& number, at::ScalarType dtype) {
  if (dtype == at::kBool) {
    return number.toBool() ? "true" : "false";
  }
  if (!at::isFloatingType(dtype)) {
    return std::to_string(number.to<int64_t>());
  }
  const auto value = number.to<double>();
  if (std::isfinite(value)) {
    return formatted("%.17e", value);
  }
  const SpecialBits bits = special_bits(dtype);
  return formatted(
      "0x%0*llX",
      bits.digits,
      std::isnan(value) ? bits.not_a_number
      : value > 0       ? bits.infinity
                        : bits.minus_infinity
  );
}

/// The bytes of a tensor as MLIR writes them: "0x" and two digits each.
std::string hex_text(const at::Tensor& values) {
  constexpr const char* kDigits = "0123456789ABCDEF";
  const auto* bytes = static_cast<const uint8_t*>(values.const_data_ptr());
  std::string text = "0x";
  for (size_t i = 0; i < values.nbytes(); ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

std::string joined_names(const std::vector<TypedValue>& operands) {
  std::vector<std::string> names;
  for (const TypedValue& one : operands) {
    names.push_back(one.name);
  }
  return join(names, ", ");
}

std::string joined_types(const std::vector<TypedValue>& operands) {
  std::vector<std::string> types;
  for (const TypedValue& one : operands) {
    types.push_back(type_text(one));
  }
  return "(" + join(types, ", ") + ")";
}

/// The function that reduces two scalars to one.
std::string reducer(const std::string& op, at::ScalarType dtype) {
  const std::string type = type_text(dtype, {});
  return "({\n    ^bb0(%x: " + type + ", %y: " + type + "):\n      %z = stablehlo." + op +
         " %x, %y : " + type + "\n      stablehlo.return %z : " + type + "\n    })";
}

/// A reducer that takes the second of two elements.
std::string second(at::ScalarType dtype) {
  const std::string type = type_text(dtype, {});
  return "({\n    ^bb0(%x: " + type + ", %y: " + type + "):\n      stablehlo.return %y : " + type +
         "\n    })";
}

/// The numbers of a scatter of whole rows.
std::string row_numbers(const TypedValue& rows) {
  Sizes window(rows.rank() - 1);
  std::iota(window.begin(), window.end(), 1);
  return "update_window_dims = " + list_text(window) +
         ", inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1";
}

bool has_16_bits(at::ScalarType dtype) {
  return dtype == at::kBFloat16 || dtype == at::kHalf;
}

} // namespace

std::string element_type(at::ScalarType dtype) {
  static const std::map<at::ScalarType, const char*> kNames{
      {at::kFloat, "f32"},
      {at::kDouble, "f64"},
      {at::kBFloat16, "bf16"},
      {at::kHalf, "f16"},
      {at::kLong, "i64"},
      {at::kInt, "i32"},
      {at::kBool, "i1"},
      {at::kByte, "ui8"}};
  const auto found = kNames.find(dtype);
  if (found == kNames.end()) {
    throw Error(
        std::string("a program cannot hold tensors of ") + c10::toString(dtype),
        "choose another precision"
    );
  }
  return found->second;
}

std::string type_text(at::ScalarType dtype, const Sizes& sizes) {
  std::string text = "tensor<";
  for (const int64_t size : sizes) {
    text += std::to_string(size) + "x";
  }
  return text + element_type(dtype) + ">";
}

std::string type_text(const TypedValue& operand) {
  return type_text(operand.dtype, operand.sizes);
}

std::string list_text(const Sizes& numbers) {
  std::vector<std::string> texts;
  for (const int64_t number : numbers) {
    texts.push_back(std::to_string(number));
  }
  return "[" + join(texts, ", ") + "]";
}

TypedValue Writer::argument(size_t number, at::ScalarType dtype, Sizes sizes) {
  return {"%arg" + std::to_string(number), dtype, std::move(sizes)};
}

TypedValue Writer::next(at::ScalarType dtype, const Sizes& sizes) {
  return {"%" + std::to_string(count_++), dtype, sizes};
}

TypedValue Writer::line(
    at::ScalarType dtype, const Sizes& sizes, const std::string& body, const std::string& types
) {
  TypedValue result = next(dtype, sizes);
  text_ += "    " + result.name + " = " + body + " : " + types + " -> " + type_text(result) + "\n";
  return result;
}

TypedValue Writer::short_line(at::ScalarType dtype, const Sizes& sizes, const std::string& body) {
  TypedValue result = next(dtype, sizes);
  text_ += "    " + result.name + " = " + body + " : " + type_text(result) + "\n";
  return result;
}

TypedValue Writer::constant(const at::Scalar& value, at::ScalarType dtype, const Sizes& sizes) {
  return short_line(dtype, sizes, "stablehlo.constant dense<" + number_text(value, dtype) + ">");
}

TypedValue Writer::constant(const at::Tensor& values) {
  const at::Tensor dense = values.cpu().contiguous();
  const at::Tensor flat = dense.reshape({-1});
  const auto dtype = dense.scalar_type();
  const bool alike = flat.numel() > 0 && at::equal(flat, flat.narrow(0, 0, 1).expand_as(flat));
  if (alike) {
    return constant(flat[0].item(), dtype, dense.sizes().vec());
  }
  if (dtype == at::kBool) { // which hexadecimal digits would pack
    const TypedValue bytes = constant(dense.to(at::kInt));
    return convert(bytes, at::kBool);
  }
  return short_line(
      dtype, dense.sizes().vec(), "stablehlo.constant dense<\"" + hex_text(dense) + "\">"
  );
}

TypedValue Writer::iota(at::ScalarType dtype, const Sizes& sizes, int64_t dim) {
  return short_line(dtype, sizes, "stablehlo.iota dim = " + std::to_string(dim));
}

TypedValue Writer::convert(const TypedValue& x, at::ScalarType dtype) {
  return x.dtype == dtype ? x
                          : line(dtype, x.sizes, "stablehlo.convert " + x.name, joined_types({x}));
}

TypedValue Writer::bitcast(const TypedValue& x, at::ScalarType dtype) {
  return line(dtype, x.sizes, "stablehlo.bitcast_convert " + x.name, joined_types({x}));
}

TypedValue Writer::reshape(const TypedValue& x, const Sizes& sizes) {
  return x.sizes == sizes ? x
                          : line(x.dtype, sizes, "stablehlo.reshape " + x.name, joined_types({x}));
}

TypedValue Writer::transpose(const TypedValue& x, const Sizes& order) {
  Sizes sizes;
  for (const int64_t dim : order) {
    sizes.push_back(x.sizes[static_cast<size_t>(dim)]);
  }
  const std::string dims = ", dims = " + list_text(order);
  return line(x.dtype, sizes, "stablehlo.transpose " + x.name + dims, joined_types({x}));
}

TypedValue Writer::broadcast(const TypedValue& x, const Sizes& sizes) {
  if (x.sizes == sizes) {
    return x;
  }
  Sizes dims;
  for (size_t i = 0; i < x.rank(); ++i) {
    dims.push_back(static_cast<int64_t>(sizes.size() - x.rank() + i));
  }
  return line(
      x.dtype,
      sizes,
      "stablehlo.broadcast_in_dim " + x.name + ", dims = " + list_text(dims),
      joined_types({x})
  );
}

TypedValue Writer::slice(const TypedValue& x, size_t dim, int64_t from, int64_t to, int64_t step) {
  Sizes sizes = x.sizes;
  std::vector<std::string> ranges;
  for (size_t i = 0; i < sizes.size(); ++i) {
    ranges.push_back(
        i == dim ? std::to_string(from) + ":" + std::to_string(to) + ":" + std::to_string(step)
                 : "0:" + std::to_string(sizes[i])
    );
  }
  sizes[dim] = (to - from + step - 1) / step;
  const std::string body = "stablehlo.slice " + x.name + " [" + join(ranges, ", ") + "]";
  return sizes == x.sizes ? x : line(x.dtype, sizes, body, joined_types({x}));
}

TypedValue Writer::concatenate(const std::vector<TypedValue>& parts, size_t dim) {
  if (parts.size() == 1) {
    return parts.front();
  }
  Sizes sizes = parts.front().sizes;
  sizes[dim] = 0;
  for (const TypedValue& part : parts) {
    sizes[dim] += part.sizes[dim];
  }
  return line(
      parts.front().dtype,
      sizes,
      "stablehlo.concatenate " + joined_names(parts) + ", dim = " + std::to_string(dim),
      joined_types(parts)
  );
}

TypedValue
Writer::pad(const TypedValue& x, double value, const Sizes& low, const Sizes& high, Sizes between) {
  between.resize(x.rank());
  Sizes sizes = x.sizes;
  for (size_t i = 0; i < sizes.size(); ++i) {
    sizes[i] += low[i] + high[i] + between[i] * std::max<int64_t>(x.sizes[i] - 1, 0);
  }
  const TypedValue fill = constant(value, x.dtype);
  return line(
      x.dtype,
      sizes,
      "stablehlo.pad " + joined_names({x, fill}) + ", low = " + list_text(low) +
          ", high = " + list_text(high) + ", interior = " + list_text(between),
      joined_types({x, fill})
  );
}

TypedValue Writer::unary(const std::string& op, const TypedValue& x) {
  if (op.find('.') == std::string::npos) {
    return short_line(x.dtype, x.sizes, "stablehlo." + op + " " + x.name);
  }
  return line(x.dtype, x.sizes, op + " " + x.name, type_text(x));
}

TypedValue Writer::binary(const std::string& op, const TypedValue& a, const TypedValue& b) {
  return short_line(a.dtype, a.sizes, "stablehlo." + op + " " + joined_names({a, b}));
}

TypedValue Writer::compare(const std::string& direction, const TypedValue& a, const TypedValue& b) {
  return line(
      at::kBool,
      a.sizes,
      "stablehlo.compare " + direction + ", " + joined_names({a, b}),
      joined_types({a, b})
  );
}

TypedValue
Writer::select(const TypedValue& which, const TypedValue& if_true, const TypedValue& if_false) {
  const TypedValue result = next(if_true.dtype, if_true.sizes);
  text_ += "    " + result.name + " = stablehlo.select " +
           joined_names({which, if_true, if_false}) + " : " + type_text(which) + ", " +
           type_text(result) + "\n";
  return result;
}

TypedValue
Writer::reduce(const std::string& op, const TypedValue& x, Sizes dims, double start, bool keep) {
  if (dims.empty()) {
    for (size_t i = 0; i < x.rank(); ++i) {
      dims.push_back(static_cast<int64_t>(i));
    }
  }
  for (int64_t& dim : dims) {
    dim = dim < 0 ? dim + static_cast<int64_t>(x.rank()) : dim;
  }
  std::sort(dims.begin(), dims.end());
  Sizes left, kept = x.sizes;
  for (size_t i = 0; i < x.rank(); ++i) {
    if (std::binary_search(dims.begin(), dims.end(), static_cast<int64_t>(i))) {
      kept[i] = 1;
    } else {
      left.push_back(x.sizes[i]);
    }
  }
  const bool widens = has_16_bits(x.dtype) && op == "add";
  const TypedValue wide = widens ? convert(x, at::kFloat) : x;
  const TypedValue init = constant(start, wide.dtype);
  const TypedValue reduced = line(
      wide.dtype,
      left,
      "stablehlo.reduce(" + wide.name + " init: " + init.name + ") applies stablehlo." + op +
          " across dimensions = " + list_text(dims),
      joined_types({wide, init})
  );
  const TypedValue result = convert(reduced, x.dtype);
  return keep ? reshape(result, kept) : result;
}

TypedValue Writer::dot(
    const TypedValue& a,
    const TypedValue& b,
    int64_t batch,
    int64_t of_a,
    int64_t of_b,
    const Sizes& sizes
) {
  Sizes batched;
  for (int64_t dim = 0; dim < batch; ++dim) {
    batched.push_back(dim);
  }
  const std::string dims = ", batching_dims = " + list_text(batched) + " x " + list_text(batched) +
                           ", contracting_dims = " + list_text({of_a}) + " x " + list_text({of_b});
  return convert(
      line(
          has_16_bits(a.dtype) ? at::kFloat : a.dtype,
          sizes,
          "stablehlo.dot_general " + joined_names({a, b}) + dims,
          joined_types({a, b})
      ),
      a.dtype
  );
}

TypedValue
Writer::slice_at(const TypedValue& x, size_t dim, const TypedValue& start, int64_t size) {
  const TypedValue zero = constant(0, start.dtype);
  Sizes sizes = x.sizes;
  sizes[dim] = size;
  std::vector<TypedValue> operands{x};
  for (size_t i = 0; i < x.rank(); ++i) {
    operands.push_back(i == dim ? start : zero);
  }
  return line(
      x.dtype,
      sizes,
      "stablehlo.dynamic_slice " + joined_names(operands) + ", sizes = " + list_text(sizes),
      joined_types(operands)
  );
}

TypedValue Writer::replace_at(
    const TypedValue& x, size_t dim, const TypedValue& start, const TypedValue& part
) {
  const TypedValue zero = constant(0, start.dtype);
  std::vector<TypedValue> operands{x, part};
  for (size_t i = 0; i < x.rank(); ++i) {
    operands.push_back(i == dim ? start : zero);
  }
  return line(
      x.dtype,
      x.sizes,
      "stablehlo.dynamic_update_slice " + joined_names(operands),
      joined_types(operands)
  );
}

TypedValue Writer::row(const TypedValue& table, const TypedValue& index) {
  return reshape(slice_at(table, 0, index, 1), Sizes(table.sizes.begin() + 1, table.sizes.end()));
}

TypedValue Writer::collective(
    const std::string& op,
    const TypedValue& x,
    const Sizes& sizes,
    const std::string& attributes,
    const std::string& reduce
) {
  return line(
      x.dtype,
      sizes,
      "\"stablehlo." + op + "\"(" + x.name + ") <{" + attributes + "}>" +
          (reduce.empty() ? "" : " " + reducer(reduce, x.dtype)),
      joined_types({x})
  );
}

TypedValue Writer::rows(const TypedValue& table, const TypedValue& ids) {
  Sizes sizes = ids.sizes, row = table.sizes, offsets;
  sizes.insert(sizes.end(), table.sizes.begin() + 1, table.sizes.end());
  row[0] = 1;
  for (size_t i = 1; i < table.rank(); ++i) {
    offsets.push_back(static_cast<int64_t>(ids.rank() + i - 1));
  }
  std::vector<std::string> row_sizes;
  for (const int64_t size : row) {
    row_sizes.push_back(std::to_string(size));
  }
  return line(
      table.dtype,
      sizes,
      "\"stablehlo.gather\"(" + joined_names({table, ids}) +
          ") <{dimension_numbers = #stablehlo.gather<offset_dims = " + list_text(offsets) +
          ", collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = " +
          std::to_string(ids.rank()) + ">, slice_sizes = array<i64: " + join(row_sizes, ", ") +
          ">}>",
      joined_types({table, ids})
  );
}

TypedValue Writer::scatter(
    const TypedValue& x,
    const TypedValue& at,
    const TypedValue& values,
    const std::string& numbers,
    const std::string& body
) {
  return line(
      x.dtype,
      x.sizes,
      "\"stablehlo.scatter\"(" + joined_names({x, at, values}) +
          ") <{scatter_dimension_numbers = #stablehlo.scatter<" + numbers + ">}> " + body,
      joined_types({x, at, values})
  );
}

TypedValue
Writer::add_rows(const TypedValue& table, const TypedValue& ids, const TypedValue& rows) {
  return scatter(table, ids, rows, row_numbers(rows), reducer("add", table.dtype));
}

TypedValue
Writer::put_rows(const TypedValue& table, const TypedValue& ids, const TypedValue& rows) {
  return scatter(table, ids, rows, row_numbers(rows), second(table.dtype));
}

TypedValue Writer::put(const TypedValue& x, const TypedValue& at, const TypedValue& values) {
  Sizes dims(x.rank());
  std::iota(dims.begin(), dims.end(), 0);
  const std::string all = list_text(dims);
  return scatter(
      x,
      at,
      values,
      "inserted_window_dims = " + all + ", scatter_dims_to_operand_dims = " + all +
          ", index_vector_dim = " + std::to_string(values.rank()),
      second(x.dtype)
  );
}

std::pair<TypedValue, TypedValue>
Writer::sort(const TypedValue& x, size_t dim, bool descending, at::ScalarType integers) {
  const TypedValue places = iota(integers, x.sizes, static_cast<int64_t>(dim));
  const std::string both = next(x.dtype, x.sizes).name, types = joined_types({x, places});
  const std::string type = type_text(x.dtype, {}), place = type_text(integers, {});
  text_ += "    " + both + ":2 = \"stablehlo.sort\"(" + joined_names({x, places}) +
           ") <{dimension = " + std::to_string(dim) +
           " : i64, is_stable = true}> ({\n    ^bb0(%x: " + type + ", %y: " + type +
           ", %i: " + place + ", %j: " + place + "):\n      %z = stablehlo.compare " +
           (descending ? "GT" : "LT") + ", %x, %y : (" + type + ", " + type +
           ") -> tensor<i1>\n      stablehlo.return %z : tensor<i1>\n    }) : " + types + " -> " +
           types + "\n";
  return {{both + "#0", x.dtype, x.sizes}, {both + "#1", integers, x.sizes}};
}

std::vector<TypedValue> Writer::repeat(
    int64_t rounds,
    const std::vector<TypedValue>& starts,
    const std::function<
        std::vector<TypedValue>(const TypedValue& round, const std::vector<TypedValue>& before)>&
        body
) {
  std::vector<TypedValue> given{constant(0, at::kInt)}, before, results;
  given.insert(given.end(), starts.begin(), starts.end());
  const std::string all = "%" + std::to_string(count_++);
  std::vector<std::string> bindings, types;
  for (size_t i = 0; i < given.size(); ++i) {
    before.push_back(next(given[i].dtype, given[i].sizes));
    bindings.push_back(before[i].name + " = " + given[i].name);
    types.push_back(type_text(given[i]));
    results.push_back({all + "#" + std::to_string(i), given[i].dtype, given[i].sizes});
  }
  const TypedValue round = before.front();
  text_ += "    " + all + ":" + std::to_string(given.size()) + " = stablehlo.while(" +
           join(bindings, ", ") + ") : " + join(types, ", ") + " cond {\n";
  const TypedValue goes_on = compare("LT", round, constant(rounds, at::kInt));
  text_ += "    stablehlo.return " + goes_on.name + " : tensor<i1>\n    } do {\n";
  const TypedValue following = binary("add", round, constant(1, at::kInt));
  std::vector<TypedValue> made = body(round, {before.begin() + 1, before.end()});
  made.insert(made.begin(), following);
  text_ += "    stablehlo.return " + joined_names(made) + " : " + join(types, ", ") + "\n    }\n";
  results.erase(results.begin());
  return results;
}

} // namespace mh::program::stablehlo
