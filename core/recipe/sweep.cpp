#include "core/recipe/sweep.hpp"

#include "core/base/text.hpp"
#include "core/language/problem.hpp"
#include "core/schema/sections.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace mh {

namespace {

constexpr int64_t kMostPoints = 1'000'000'000'000'000;

using SweptKey = std::pair<std::string, Value>; // key and its list

[[noreturn]] void refuse(const Value& at, const std::string& key, const std::string& message) {
  throw RecipeError({{at.origin, key, message, "", ""}});
}

/// A key next to the parts would be left out without a word.
void require_parts(const Value& sweep) {
  std::vector<Problem> problems;
  static_cast<void>(complete(sweep_schema(), sweep, "sweep", problems));
  for (Problem& problem : problems) {
    const bool misspelt = std::ranges::any_of(sweep_schema().fields, [&](const Field& part) {
      return problem.label == "did you mean `" + part.name + "`?";
    });
    if (!misspelt) { // such as "optimizer.lr", which means a key of the recipe
      problem.label = "keys and their values belong in grid, zip, list or random";
      problem.note = "";
    }
  }
  throw_problems(std::move(problems));
}

bool is_range(const Value& value) {
  return value.find("from") != nullptr && value.find("to") != nullptr;
}

/// The leaves of a table by dotted key: lists, and ranges.
void collect(const Value& table, const std::string& path, std::vector<SweptKey>& axes) {
  for (const auto& entry : table.as_table()) {
    const std::string key = path.empty() ? entry.key : path + "." + entry.key;
    if (entry.value.is_table() && !is_range(entry.value)) {
      collect(entry.value, key, axes);
    } else {
      axes.emplace_back(key, entry.value);
    }
  }
}

std::vector<SweptKey> axes_of(const Value& sweep, const char* part) {
  const Value* table = sweep.find(part);
  std::vector<SweptKey> axes;
  if (table == nullptr) {
    return axes;
  }
  const std::string key = std::string("sweep.") + part;
  if (!table->is_table()) {
    refuse(*table, key, key + " is " + to_text(*table) + ", expected lists of values by key");
  }
  collect(*table, "", axes);
  return axes;
}

const Value::Array& list_of(const SweptKey& axis, const char* part) {
  const auto& [key, value] = axis;
  if (!value.is_array() || value.as_array().empty()) {
    refuse(
        value,
        std::string("sweep.") + part + "." + key,
        key + " in sweep." + part + " is " + to_text(value) + ", expected a list of values"
    );
  }
  return value.as_array();
}

/// Values that share a place with the list they stand in, where they have none.
std::pair<std::string, Value> setting(const SweptKey& axis, size_t index) {
  Value value = axis.second.as_array()[index];
  if (!value.origin.source) {
    value.origin = axis.second.origin;
  }
  return {axis.first, std::move(value)};
}

std::vector<SweepPoint> grid_points(const Value& sweep) {
  std::vector<SweepPoint> points{{}};
  for (const SweptKey& axis : axes_of(sweep, "grid")) {
    std::vector<SweepPoint> more;
    for (const SweepPoint& point : points) {
      for (size_t i = 0; i < list_of(axis, "grid").size(); ++i) {
        more.push_back(point);
        more.back().values.push_back(setting(axis, i));
      }
    }
    points = std::move(more);
  }
  return points;
}

std::vector<SweepPoint> zip_points(const Value& sweep) {
  const std::vector<SweptKey> axes = axes_of(sweep, "zip");
  if (axes.empty()) {
    return {{}};
  }
  const size_t length = list_of(axes.front(), "zip").size();
  std::vector<SweepPoint> points(length);
  for (const SweptKey& axis : axes) {
    if (list_of(axis, "zip").size() != length) {
      refuse(
          axis.second,
          "sweep.zip." + axis.first,
          axis.first + " in sweep.zip has " + std::to_string(list_of(axis, "zip").size()) +
              " values, expected as many as " + axes.front().first + ": " + std::to_string(length)
      );
    }
    for (size_t i = 0; i < length; ++i) {
      points[i].values.push_back(setting(axis, i));
    }
  }
  return points;
}

std::vector<SweepPoint> list_points(const Value& sweep) {
  const Value* list = sweep.find("list");
  if (list == nullptr) {
    return {{}};
  }
  if (!list->is_array() || list->as_array().empty()) {
    refuse(*list, "sweep.list", "sweep.list is " + to_text(*list) + ", expected a list of tables");
  }
  std::vector<SweepPoint> points;
  for (const Value& row : list->as_array()) {
    if (!row.is_table()) {
      refuse(row, "sweep.list", "a row of sweep.list is " + to_text(row) + ", expected a table");
    }
    SweepPoint point;
    Value settings = row;
    if (const Value* notes = row.find("notes"); notes != nullptr && notes->is_table()) {
      point.notes = notes->as_table();
      settings.as_table().erase("notes");
    }
    collect(settings, "", point.values);
    point.row = point.values.size();
    points.push_back(std::move(point));
  }
  return points;
}

/// A 64-bit mix that gives the same numbers on every machine.
///
/// Source:  SplitMix64, Steele, Lea and Flood, OOPSLA 2014
class Draw {
public:
  explicit Draw(uint64_t seed)
      : state_(seed) {}

  /// The next number in [0, 1).
  double share() {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    z ^= z >> 31;
    return static_cast<double>(z >> 11) * 0x1p-53;
  }

private:
  uint64_t state_;
};

/// A number of the range, whole where both ends are.
Value drawn(const SweptKey& axis, Draw& draw) {
  const auto& [key, range] = axis;
  const double share = draw.share();
  if (range.is_array() && !range.as_array().empty()) {
    const auto& choices = range.as_array();
    return choices[static_cast<size_t>(share * static_cast<double>(choices.size()))];
  }
  const Value* from = range.find("from");
  const Value* to = range.find("to");
  const Value* log = range.find("log");
  const bool by_logarithm = log != nullptr && log->is_boolean() && log->as_boolean();
  const bool numbers = from != nullptr && to != nullptr && from->is_number() && to->is_number();
  if (!numbers || from->as_number() > to->as_number() || (by_logarithm && from->as_number() <= 0)) {
    refuse(
        range,
        "sweep.random." + key,
        key + " in sweep.random is " + to_text(range) +
            ", expected a list of values or { from = 1e-5, to = 1e-3, log = true }"
    );
  }
  const double low = from->as_number(), high = to->as_number();
  if (from->is_integer() && to->is_integer()) {
    const double width = high - low + 1;
    const double value = by_logarithm ? std::exp(std::log(low) + share * std::log((high + 1) / low))
                                      : low + share * width;
    return std::min<int64_t>(to->as_integer(), static_cast<int64_t>(std::floor(value)));
  }
  const double value =
      by_logarithm ? low * std::pow(high / low, share) : low + share * (high - low);
  std::array<char, 32> digits{}; // six: what a person would write
  std::snprintf(digits.data(), digits.size(), "%.6g", value);
  return std::strtod(digits.data(), nullptr);
}

int64_t whole(const Value& table, const char* key, int64_t otherwise) {
  const Value* value = table.find(key);
  if (value != nullptr && (!value->is_integer() || value->as_integer() < 0)) {
    refuse(
        *value,
        std::string("sweep.random.") + key,
        std::string("sweep.random.") + key + " is " + to_text(*value) + ", expected a whole number"
    );
  }
  return value != nullptr ? value->as_integer() : otherwise;
}

std::vector<SweptKey> random_axes(const Value& sweep) {
  std::vector<SweptKey> axes = axes_of(sweep, "random");
  std::erase_if(axes, [](const SweptKey& axis) {
    return axis.first == "count" || axis.first == "seed";
  });
  return axes;
}

std::vector<SweepPoint> random_points(const Value& sweep) {
  const std::vector<SweptKey> axes = random_axes(sweep);
  if (axes.empty()) {
    return {{}};
  }
  const Value& table = *sweep.find("random");
  std::vector<SweepPoint> points(static_cast<size_t>(whole(table, "count", 10)));
  Draw draw(static_cast<uint64_t>(whole(table, "seed", 1)));
  for (SweepPoint& point : points) {
    for (const SweptKey& axis : axes) {
      Value value = drawn(axis, draw);
      value.origin = axis.second.origin;
      point.values.emplace_back(axis.first, std::move(value));
    }
  }
  return points;
}

std::vector<SweepPoint>
product(const std::vector<SweepPoint>& left, const std::vector<SweepPoint>& right) {
  std::vector<SweepPoint> points;
  points.reserve(left.size() * right.size());
  for (const SweepPoint& a : left) {
    for (const SweepPoint& b : right) {
      points.push_back(a);
      SweepPoint& point = points.back();
      point.values.insert(point.values.end(), b.values.begin(), b.values.end());
      for (const auto& note : b.notes) {
        point.notes.set(note.key, note.value);
      }
    }
  }
  return points;
}

/// "1e-4,[0.9, 0.95]" at its commas outside of brackets and quotes.
std::vector<std::string> split_values(const std::string& text) {
  std::vector<std::string> parts{""};
  int depth = 0;
  char quote = '\0';
  for (const char c : text) {
    if (quote != '\0') {
      quote = c == quote ? '\0' : quote;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else {
      depth += c == '[' || c == '{' ? 1 : c == ']' || c == '}' ? -1 : 0;
    }
    if (c == ',' && depth == 0 && quote == '\0') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

struct PointValue {
  std::string key, value;
};

PointValue word_of(const std::string& option, const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == 0 || equals == std::string::npos || equals + 1 == text.size()) {
    throw Error(
        option + " " + text + " has no key or no value",
        "write " + option + " optimizer.lr=1e-4,3e-4"
    );
  }
  return {text.substr(0, equals), text.substr(equals + 1)};
}

Value value_of(const std::string& key, const std::string& text) {
  const Layer layer = set_layer(key + "=" + text);
  const Value* value = layer.tree.find_path(key);
  if (value == nullptr) {
    throw Error(key + " is no dotted key", "write it as in optimizer.lr");
  }
  return *value;
}

Value list_value(const PointValue& word) {
  Value::Array list;
  for (const std::string& item : split_values(word.value)) {
    list.push_back(value_of(word.key, item));
  }
  Value value(std::move(list));
  value.origin = value.as_array().front().origin;
  return value;
}

Value range_value(const PointValue& word) {
  const bool by_logarithm = word.value.starts_with("log:");
  const std::string range = by_logarithm ? word.value.substr(4) : word.value;
  const size_t dots = range.find("..");
  if (dots == std::string::npos) {
    return list_value(word);
  }
  return Table{
      {"from", value_of(word.key, range.substr(0, dots))},
      {"to", value_of(word.key, range.substr(dots + 2))},
      {"log", by_logarithm}};
}

} // namespace

Layer SweepPoint::layer() const {
  Value tree = Table{};
  for (const auto& [key, value] : values) {
    Value* at = &tree;
    size_t begin = 0;
    for (size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', begin)) {
      const std::string part = key.substr(begin, dot - begin);
      Table& table = at->as_table();
      at = table.find(part) != nullptr && table.find(part)->is_table() ? table.find(part)
                                                                       : &table.set(part, Table{});
      begin = dot + 1;
    }
    at->as_table().set(key.substr(begin), value);
  }
  return {"sweep", std::move(tree)};
}

std::string SweepPoint::label() const {
  const Value* name = notes.find("name");
  const bool named = name != nullptr && name->is_string();
  std::string text = named ? name->as_string() : "";
  for (size_t i = named ? row : 0; i < values.size(); ++i) {
    const auto& [key, value] = values[i];
    text += (text.empty() ? "" : " ") + key.substr(key.rfind('.') + 1) + "=" +
            (value.is_string() ? value.as_string() : to_text(value));
  }
  return text;
}

std::vector<SweepPoint> sweep_points(const Value& sweep) {
  require_parts(sweep);
  return product(
      product(product(list_points(sweep), zip_points(sweep)), grid_points(sweep)),
      random_points(sweep)
  );
}

int64_t count_points(const Value& sweep) {
  require_parts(sweep);
  double count = static_cast<double>(list_points(sweep).size() * zip_points(sweep).size());
  for (const SweptKey& axis : axes_of(sweep, "grid")) {
    count *= static_cast<double>(list_of(axis, "grid").size());
  }
  if (!random_axes(sweep).empty()) {
    count *= static_cast<double>(whole(*sweep.find("random"), "count", 10));
  }
  return count < static_cast<double>(kMostPoints) ? static_cast<int64_t>(count) : kMostPoints;
}

SweepAdditions sweep_additions(
    const std::vector<std::string>& sets,
    const std::vector<std::string>& zips,
    const std::vector<std::string>& randoms,
    int64_t count
) {
  SweepAdditions added;
  Table grid, zip, random;
  for (const std::string& text : sets) {
    const PointValue word = word_of("--set", text);
    if (split_values(word.value).size() > 1) {
      grid.set(word.key, list_value(word));
    } else {
      added.fixed.push_back(text);
    }
  }
  for (const std::string& text : zips) {
    const PointValue word = word_of("--zip", text);
    zip.set(word.key, list_value(word));
  }
  for (const std::string& text : randoms) {
    const PointValue word = word_of("--random", text);
    random.set(word.key, range_value(word));
  }
  if (!randoms.empty()) {
    random.set("count", count);
  }
  for (auto& [part, table] :
       {std::pair("grid", &grid), std::pair("zip", &zip), std::pair("random", &random)}) {
    if (table->size() > 0) {
      added.sweep.as_table().set(part, *table);
    }
  }
  return added;
}

} // namespace mh
