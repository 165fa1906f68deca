#include "core/language/problem.hpp"
#include "core/language/read.hpp"

#include <toml++/toml.h>

#include <algorithm>

namespace mh {

namespace {

class TomlReader {
public:
  explicit TomlReader(const SourcePtr& source)
      : index_(source) {}

  Value read() const {
    try {
      return convert(toml::parse(index_.source()->text, index_.source()->name), 0);
    } catch (const toml::parse_error& error) {
      const toml::source_region& at = error.source();
      throw RecipeError(
          {{origin(at), "", "this is no TOML: " + std::string(error.description()), "", ""}}
      );
    }
  }

private:
  Origin origin(const toml::source_region& at) const {
    if (at.begin.line == 0) {
      return {index_.source()};
    }
    return index_.at_characters(
        static_cast<int>(at.begin.line),
        static_cast<int>(at.begin.column),
        static_cast<int>(at.end.line),
        static_cast<int>(at.end.column)
    );
  }

  [[noreturn]] void refuse(const toml::node& node, const std::string& message) const {
    throw RecipeError({{origin(node.source()), "", message, "", ""}});
  }

  Value convert(const toml::node& node, int depth) const {
    if (depth > kDeepest) {
      refuse(node, "tables nested deeper than " + std::to_string(kDeepest));
    }
    Value value = convert_contents(node, depth);
    value.origin = origin(node.source());
    return value;
  }

  Value convert_contents(const toml::node& node, int depth) const {
    if (const auto* table = node.as_table()) {
      return convert_table(*table, depth);
    }
    if (const auto* array = node.as_array()) {
      Value::Array result;
      for (const auto& item : *array) {
        result.push_back(convert(item, depth + 1));
      }
      return result;
    }
    if (const auto* text = node.as_string()) {
      return text->get();
    }
    if (const auto* integer = node.as_integer()) {
      return integer->get();
    }
    if (const auto* number = node.as_floating_point()) {
      return number->get();
    }
    if (const auto* boolean = node.as_boolean()) {
      return boolean->get();
    }
    refuse(node, "a recipe holds no dates or times: write a string");
  }

  /// Members in the order in which they are written; toml++ sorts them by name.
  Value convert_table(const toml::table& table, int depth) const {
    struct Member {
      const toml::key* key;
      const toml::node* node;
    };

    std::vector<Member> members;
    for (const auto& [key, node] : table) {
      members.push_back({&key, &node});
    }
    std::stable_sort(members.begin(), members.end(), [](const Member& a, const Member& b) {
      return a.key->source().begin < b.key->source().begin;
    });
    Table result;
    for (const Member& member : members) {
      result.set(
          std::string(member.key->str()),
          convert(*member.node, depth + 1),
          origin(member.key->source())
      );
    }
    return result;
  }

  LineIndex index_;
};

} // namespace

Value read_toml(const SourcePtr& source) {
  return TomlReader(source).read();
}

} // namespace mh
