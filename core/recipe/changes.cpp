#include "core/recipe/changes.hpp"

#include "core/base/text.hpp"
#include "core/language/read.hpp"
#include "core/recipe/commands.hpp"
#include "core/schema/sections.hpp"
#include "megahost/error.hpp"

#include <algorithm>

namespace mh {

namespace {

/// The field that holds a key, or a member of it, if a schema knows it.
const Field* holder_of(const SectionSchemas& schemas, const std::string& key) {
  const auto [section, name] = split_key(key);
  const auto schema = schemas.find(section);
  if (schema == schemas.end()) { // the options of a plugin that is no section: "device.peak"
    const auto top = schemas.find("");
    return top == schemas.end() ? nullptr : top->second.find(section);
  }
  return schema->second.find(name.substr(0, name.find('.')));
}

bool is_default(const std::optional<Value>& value, const Field* field) {
  return value && field != nullptr && *value == field->default_value;
}

} // namespace

std::string KeyChange::text() const {
  const auto of = [](const std::optional<Value>& value) {
    return value ? to_text(*value) : std::string("not set");
  };
  return key + " " + of(now) + " (checkpoint " + of(saved) + ")";
}

std::map<std::string, std::string> section_texts(const Value& tree) {
  std::map<std::string, std::string> sections;
  for (const auto& entry : tree.as_table()) {
    if (entry.key != "sweep") {
      sections[entry.key] = to_text(entry.value);
    }
  }
  return sections;
}

Value read_sections(const std::map<std::string, std::string>& sections) {
  std::string text;
  for (const auto& [name, value] : sections) {
    text += name + " = " + value + "\n";
  }
  return read_toml(std::make_shared<const Source>(Source{
      "the checkpoint's recipe", std::move(text), "checkpoint"}));
}

std::vector<KeyChange> changes_since(
    const std::map<std::string, std::string>& saved,
    const Value& tree,
    const SectionSchemas& schemas
) {
  const Value before = read_sections(saved);
  std::vector<KeyChange> changes;
  for (const Difference& one : differences(tree, before)) {
    const std::string section = split_key(one.key).first;
    if (!one.right && !saved.contains(section.empty() ? one.key : section)) {
      continue; // older checkpoints keep some sections only
    }
    const Field* field = holder_of(schemas, one.key);
    const Value* plugin = section.empty() ? nullptr : before.find_path(section + ".use");
    const bool other_plugin = plugin != nullptr && tree.find_path(section + ".use") != nullptr &&
                              !(*plugin == *tree.find_path(section + ".use"));
    const bool one_sided = !one.left || !one.right;
    if (one_sided && (other_plugin || is_default(one.left ? one.left : one.right, field))) {
      continue;
    }
    changes.push_back(
        {.key = one.key,
         .now = one.left,
         .saved = one.right,
         .may_change = field != nullptr && may_change_on_resume(section, *field),
         .path = field != nullptr && field->path}
    );
  }
  return changes;
}

bool is_allowed(const std::vector<std::string>& allowed, const std::string& key) {
  return std::any_of(allowed.begin(), allowed.end(), [&key](const std::string& one) {
    return key == one || key.starts_with(one + ".");
  });
}

void check_allowed(const std::vector<std::string>& allowed, const SectionSchemas& schemas) {
  std::vector<std::string> keys = all_keys(schemas);
  for (const auto& [section, schema] : schemas) {
    if (!section.empty()) {
      keys.push_back(section);
    }
  }
  for (const std::string& one : allowed) {
    if (std::find(keys.begin(), keys.end(), one) == keys.end()) {
      const auto meant = nearest(one, keys);
      throw Error(
          "--allow-change " + one + ": this recipe has no such key or section",
          meant ? "did you mean " + *meant + "?" : "megahost recipe show prints every key"
      );
    }
  }
}

} // namespace mh
