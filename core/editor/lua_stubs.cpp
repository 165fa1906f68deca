#include "core/base/text.hpp"
#include "core/editor/editor.hpp"
#include "core/schema/sections.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace mh {

namespace {

/// "a" | "b"
std::string words_type(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : " | ") + lua_string(word);
  }
  return text;
}

std::string one(const Field& field);

std::string type_of(const Field& field) {
  const std::string type = one(field);
  if (!field.list) {
    return type;
  }
  return (type.find('|') == std::string::npos ? type : "(" + type + ")") + "[]";
}

/// { match: string[], frozen?: boolean }
std::string table_type(const Schema& schema) {
  std::string text;
  for (const Field& field : schema.fields) {
    text += (text.empty() ? "{ " : ", ") + field.name + (field.required ? ": " : "?: ") +
            type_of(field);
  }
  return text + " }";
}

std::string one(const Field& field) {
  const std::string words = field.choices.empty()
                                ? "string"
                                : words_type(field.choices) + (field.parts ? " | string" : "");
  switch (field.type) {
  case FieldType::boolean:
    return "boolean";
  case FieldType::integer:
    return "integer";
  case FieldType::number:
    return "number";
  case FieldType::string:
    return words;
  case FieldType::integer_or_string:
    return "integer | " + words;
  case FieldType::plugin:
    return words;
  case FieldType::table:
    return field.item ? table_type(*field.item) : "table<string, any>";
  case FieldType::any:
    break;
  }
  return "any";
}

/// The meaning, what `describe` adds to the type, and the default, on one line.
std::string comment(const Field& field) {
  std::string text = field.doc;
  const auto add = [&text](const std::string& more) { text += (text.empty() ? "" : "; ") + more; };
  if (field.min || field.max) {
    add(describe(field));
  }
  if (!field.unit.empty()) {
    add("in " + field.unit);
  }
  if (!field.default_value.is_null()) {
    add("default " + to_text(field.default_value));
  }
  return text;
}

/// `type` stands for the field's own where it is given.
std::string member(const Field& field, const std::string& type = "") {
  const std::string meaning = comment(field);
  return "---@field " + field.name + (field.required && field.name != "use" ? " " : "? ") +
         (type.empty() ? type_of(field) : type) + (meaning.empty() ? "" : " # " + meaning) + "\n";
}

std::string head(const std::string& name, const std::string& doc) {
  return "\n--- " + doc + "\n---@class (exact) megahost." + name + "\n";
}

/// One class per plugin, and the section as one of them.
std::string
plugin_section_text(const PluginSectionInfo& section, const RecipeCatalogue& catalogue) {
  const std::string name(section.name);
  std::string text, alias;
  for (const Registry::Entry* entry : catalogue.of(section.kind)) {
    text += head(name + "." + entry->name, entry->summary);
    for (const Field& field : with_plugin(core_schema(name), entry->schema).fields) {
      text += field.name == "use"
                  ? "---@field use? " +
                        words_type({entry->name, entry->plugin->id + "/" + entry->name}) + " # " +
                        field.doc + "\n"
              : field.name == "preset" ? member(field, "megahost.preset")
                                       : member(field);
    }
    alias += (alias.empty() ? "" : " | ") + ("megahost." + name + "." + entry->name);
  }
  return text + "\n---@alias megahost." + name + " " + (alias.empty() ? "table" : alias) + "\n";
}

/// The type of a key whose value is a plugin: names, and tables of those that have options.
std::string plugin_type(const Field& field, const RecipeCatalogue& catalogue) {
  std::vector<std::string> names;
  if (!field.default_value.is_null()) {
    names.push_back(field.default_value.as_string());
  }
  std::string tables;
  for (const Registry::Entry* entry : catalogue.of(*field.names)) {
    if (std::find(names.begin(), names.end(), entry->name) == names.end()) {
      names.push_back(entry->name);
    }
    const std::string options =
        entry->schema.fields.empty() ? " }" : "," + table_type(entry->schema).substr(1);
    tables +=
        " | { use: " + words_type({entry->name, entry->plugin->id + "/" + entry->name}) + options;
  }
  return (names.empty() ? "string" : words_type(names)) + tables;
}

std::string core_section_text(const std::string& name, const RecipeCatalogue& catalogue) {
  std::string text = head(name, section_doc(name));
  for (const Field& field : shared_schema(name, catalogue.plugins).fields) {
    text += field.names ? member(field, plugin_type(field, catalogue)) : member(field);
  }
  return text;
}

std::string recipe_text(const RecipeCatalogue& catalogue) {
  std::string text = head("sweep", recipe_schema().find("sweep")->doc);
  for (const Field& field : sweep_schema().fields) {
    text += member(field, "table");
  }
  text += head("Recipe", "A recipe: the one table that its file returns.");
  for (const Field& field : recipe_schema().fields) {
    const auto& sections = section_names();
    const bool section = std::find(sections.begin(), sections.end(), field.name) != sections.end();
    text += field.names               ? member(field, plugin_type(field, catalogue))
            : field.name == "extends" ? member(field, "string | string[]")
            : field.name == "preset"  ? member(field, "string | string[]")
            : field.name == "sweep"   ? member(field, "megahost.sweep")
            : section                 ? member(field, "megahost." + field.name)
                                      : member(field);
  }
  return text;
}

constexpr const char* kHead = R"(---@meta

-- What a recipe in Lua may hold: written by `megahost recipe stubs`, do not edit. In a recipe,
--
--     ---@type megahost.Recipe
--     local recipe = {
--       model = { use = "llama" },
--     }
--     return recipe
--
-- lets the Lua language server complete and check it.
)";

constexpr const char* kFunctions = R"(
--- A module of the recipe folders: `require "presets.base"` is presets/base.lua.
---@param name string names of a-z, 0-9 and _ joined by dots
---@return any
function require(name) end

--- Tables merged from left to right into a new one: the right side wins, lists replace.
---@param ... table
---@return table
function merge(...) end

--- What this machine can do.
---@class (exact) megahost.machine
---@field bf16 boolean # it multiplies bf16 in hardware
machine = {}
)";

} // namespace

std::string lua_stubs(const RecipeCatalogue& catalogue) {
  std::vector<std::string> presets;
  for (const Preset& preset : catalogue.presets) {
    presets.push_back(preset.name);
  }
  std::string text = std::string(kHead) + "\n---@alias megahost.preset " +
                     (presets.empty() ? "string" : words_type(presets)) + "\n";
  for (const std::string& name : section_names()) {
    const PluginSectionInfo* section = plugin_section(name);
    text += section ? plugin_section_text(*section, catalogue) : core_section_text(name, catalogue);
  }
  return text + recipe_text(catalogue) + kFunctions;
}

std::string luarc(const std::string& stubs) {
  const nlohmann::ordered_json settings{
      {"runtime.version", "Lua 5.4"},
      {"runtime.builtin",
       {{"io", "disable"},
        {"os", "disable"},
        {"debug", "disable"},
        {"package", "disable"},
        {"coroutine", "disable"}}},
      {"workspace.library", {stubs}}};
  return settings.dump(2) + "\n";
}

} // namespace mh
