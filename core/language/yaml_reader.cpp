// yaml-cpp parses; each value gets its type, as PyYAML takes it, and its place.

#include "core/language/foreign_yaml.hpp"
#include "core/language/problem.hpp"
#include "core/language/read.hpp"

#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace mh {

namespace {

/// The number of a plain scalar; nothing if it is none.
std::optional<Value> number_of(std::string word) {
  std::erase(word, '_');
  const bool plus = word.starts_with('+'), minus = word.starts_with('-');
  const std::string digits = word.substr(plus || minus ? 1 : 0);
  if (digits == ".inf" || digits == ".Inf" || digits == ".INF") {
    const double infinite = std::numeric_limits<double>::infinity();
    return minus ? -infinite : infinite;
  }
  if (word == ".nan" || word == ".NaN" || word == ".NAN") {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (digits.empty() || (digits[0] != '.' && (digits[0] < '0' || digits[0] > '9'))) {
    return std::nullopt;
  }
  const int base = digits.starts_with("0x") ? 16 : digits.starts_with("0o") ? 8 : 10;
  const std::string whole = (minus ? "-" : "") + digits.substr(base == 10 ? 0 : 2);
  int64_t integer = 0;
  const char* end = whole.data() + whole.size();
  if (const auto read = std::from_chars(whole.data(), end, integer, base);
      read.ec == std::errc() && read.ptr == end) {
    return integer;
  }
  const std::string real = (minus ? "-" : "") + digits;
  double number = 0;
  end = real.data() + real.size();
  const auto read = std::from_chars(real.data(), end, number);
  return read.ec == std::errc() && read.ptr == end ? std::optional<Value>(number) : std::nullopt;
}

/// A plain scalar as PyYAML takes it, but for 1e-5, which is a number here.
Value plain_value(const std::string& word) {
  const auto is = [&](std::initializer_list<std::string_view> words) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  if (is({"", "~", "null", "Null", "NULL"})) {
    return {};
  }
  if (is({"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})) {
    return true;
  }
  if (is({"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})) {
    return false;
  }
  return number_of(word).value_or(Value(word));
}

class YamlReader {
public:
  explicit YamlReader(const SourcePtr& source)
      : index_(source) {}

  Value read() {
    const auto documents = parse();
    if (documents.size() > 1) {
      fail(documents[1].Mark(), "a second document begins here, expected one");
    }
    return documents.empty() ? Value() : convert(documents.front(), 0);
  }

private:
  static constexpr size_t kMostValues = 100'000; // also of those that aliases stand for

  [[nodiscard]] const std::string& text() const { return index_.source()->text; }

  [[nodiscard]] Origin origin(const YAML::Mark& mark, size_t length = 1) const {
    const size_t begin =
        mark.is_null() ? 0 : std::min(static_cast<size_t>(mark.pos), text().size());
    return index_.at(begin, std::min(begin + length, text().size()));
  }

  static std::string too_deep() { return "tables nested deeper than " + std::to_string(kDeepest); }

  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& message) const {
    throw RecipeError({{origin(mark), "", message, "", ""}});
  }

  [[nodiscard]] std::vector<YAML::Node> parse() const {
    try {
      return YAML::LoadAll(text());
    } catch (const YAML::DeepRecursion& error) {
      fail(error.mark, too_deep());
    } catch (const YAML::Exception& error) {
      fail(error.mark, "this is no YAML: " + error.msg);
    }
  }

  Value convert(const YAML::Node& node, int depth) {
    if (depth > kDeepest) {
      fail(node.Mark(), too_deep());
    }
    if (++values_ > kMostValues) {
      fail(node.Mark(), "aliases make more than 100,000 values of this file");
    }
    if (node.IsScalar()) {
      return scalar(node);
    }
    Value value;
    if (node.IsSequence()) {
      Value::Array items;
      for (const YAML::Node& item : node) {
        items.push_back(convert(item, depth + 1));
      }
      value = Value(std::move(items));
    } else if (node.IsMap()) {
      value = Value(table(node, depth));
    }
    value.origin = origin(node.Mark());
    return value;
  }

  /// Quoted ones have the tag "!", and are texts as those that are said to be.
  Value scalar(const YAML::Node& node) const {
    const std::string& word = node.Scalar();
    const bool is_text = node.Tag() == "!" || node.Tag() == "tag:yaml.org,2002:str";
    Value value = is_text ? Value(word) : plain_value(word);
    const size_t begin = static_cast<size_t>(std::max(0, node.Mark().pos));
    const bool is_plain = text().compare(std::min(begin, text().size()), word.size(), word) == 0;
    value.origin = origin(node.Mark(), is_plain ? std::max<size_t>(1, word.size()) : 1);
    return value;
  }

  Table table(const YAML::Node& node, int depth) {
    Table result;
    std::vector<Value> merged;
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) {
        fail(entry.first.Mark(), "a key that is no word");
      }
      const std::string& key = entry.first.Scalar();
      if (result.find(key) != nullptr) {
        fail(entry.first.Mark(), "the key `" + key + "` is given twice");
      }
      Value value = convert(entry.second, depth + 1);
      if (key == "<<") {
        merged.push_back(std::move(value));
      } else {
        result.set(key, std::move(value), scalar(entry.first).origin);
      }
    }
    for (const Value& one : merged) {
      merge(one, result);
    }
    return result;
  }

  /// "<<": what a table lacks is that of another, or of the first of several that has it.
  void merge(const Value& from, Table& ret_table) const {
    if (from.is_array()) {
      for (const Value& one : from.as_array()) {
        merge(one, ret_table);
      }
    } else if (from.is_table()) {
      for (const auto& entry : from.as_table()) {
        if (ret_table.find(entry.key) == nullptr) {
          ret_table.set(entry.key, entry.value, entry.key_origin);
        }
      }
    } else {
      throw RecipeError({{from.origin, "", "<< takes tables, this is none", "", ""}});
    }
  }

  LineIndex index_;
  size_t values_ = 0;
};

} // namespace

Value read_foreign_yaml(const SourcePtr& source) {
  Value tree = YamlReader(source).read();
  if (tree.is_null()) {
    tree.origin = {source, 0, 0, 0};
  }
  if (!tree.is_table()) {
    throw RecipeError(
        {{tree.origin,
          "",
          "the file holds " + describe(tree.type()) + ", expected a table",
          "",
          ""}}
    );
  }
  return tree;
}

} // namespace mh
