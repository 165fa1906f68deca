#include "core/base/text.hpp"
#include "core/recipe/commands.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <cctype>

namespace mh {

namespace {

/// "default", "machine", or the place: "recipes/a.toml:3:7".
std::string origin_text(const Origin& at) {
  if (!at.source) {
    return "default";
  }
  if (at.layer() == "machine" || at.line == 0) {
    return at.layer();
  }
  return (at.layer() == "recipe" || at.layer() == at.source->name ? "" : at.layer() + " ") +
         at.where();
}

std::string lua_key(const std::string& key) {
  static const std::vector<std::string> words{
      "and",      "break",  "do",   "else", "elseif", "end",  "false", "for",
      "function", "goto",   "if",   "in",   "local",  "nil",  "not",   "or",
      "repeat",   "return", "then", "true", "until",  "while"};
  const bool name =
      !key.empty() && !std::isdigit(static_cast<unsigned char>(key.front())) &&
      key.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789") ==
          std::string::npos &&
      std::find(words.begin(), words.end(), key) == words.end();
  return name ? key : "[" + lua_string(key) + "]";
}

std::string lua_value(const Value& value) {
  if (value.is_string()) {
    return lua_string(value.as_string());
  }
  if (value.is_number() && !value.is_integer()) {
    const std::string number = to_text(value);
    return number == "inf" ? "math.huge" : number == "-inf" ? "-math.huge" : number;
  }
  if (!value.is_array() && !value.is_table()) {
    return to_text(value);
  }
  std::string text;
  if (value.is_array()) {
    for (const Value& item : value.as_array()) {
      text += (text.empty() ? " " : ", ") + lua_value(item);
    }
  } else {
    for (const auto& entry : value.as_table()) {
      text += (text.empty() ? " " : ", ") + lua_key(entry.key) + " = " + lua_value(entry.value);
    }
  }
  return text.empty() ? "{}" : "{" + text + " }";
}

std::string json_value(const Value& value) {
  if (!value.is_array() && !value.is_table()) {
    return to_text(value);
  }
  std::string text;
  if (value.is_array()) {
    for (const Value& item : value.as_array()) {
      text += (text.empty() ? "" : ", ") + json_value(item);
    }
    return "[" + text + "]";
  }
  for (const auto& entry : value.as_table()) {
    text += (text.empty() ? "" : ", ") + string_text(entry.key) + ": " + json_value(entry.value);
  }
  return "{" + text + "}";
}

std::string show_toml(const Table& tree, bool origins) {
  const auto line = [origins](const Table::Entry& entry) {
    return key_text(entry.key) + " = " + to_text(entry.value) +
           (origins ? "  # " + origin_text(entry.value.origin) : "") + "\n";
  };
  std::string text;
  for (const auto& entry : tree) {
    text += entry.value.is_table() ? "" : line(entry);
  }
  for (const auto& section : tree) {
    if (section.value.is_table()) {
      text += "\n[" + key_text(section.key) + "]\n";
      for (const auto& entry : section.value.as_table()) {
        text += line(entry);
      }
    }
  }
  return text;
}

std::string show_lua(const Table& tree, bool origins) {
  const auto line = [origins](const std::string& indent, const Table::Entry& entry) {
    return indent + lua_key(entry.key) + " = " + lua_value(entry.value) + "," +
           (origins ? "  -- " + origin_text(entry.value.origin) : "") + "\n";
  };
  std::string text = "return {\n";
  for (const auto& section : tree) {
    if (!section.value.is_table()) {
      text += line("  ", section);
      continue;
    }
    text += "  " + lua_key(section.key) + " = {\n";
    for (const auto& entry : section.value.as_table()) {
      text += line("    ", entry);
    }
    text += "  },\n";
  }
  return text + "}\n";
}

/// Two levels of lines, the rest within one.
std::string show_json(const Table& tree, const std::string& indent) {
  std::string text = "{\n";
  for (const auto& section : tree) {
    text += indent + "  " + string_text(section.key) + ": ";
    if (section.value.is_table() && !section.value.as_table().empty()) {
      text += "{\n";
      for (const auto& entry : section.value.as_table()) {
        text += indent + "    " + string_text(entry.key) + ": " + json_value(entry.value) +
                (&entry + 1 == section.value.as_table().end() ? "\n" : ",\n");
      }
      text += indent + "  }";
    } else {
      text += json_value(section.value);
    }
    text += &section + 1 == tree.end() ? "\n" : ",\n";
  }
  return text + indent + "}";
}

std::string json_origins(const Table& tree) {
  Table origins;
  for (const auto& section : tree) {
    if (!section.value.is_table()) {
      origins.set(section.key, origin_text(section.value.origin));
      continue;
    }
    for (const auto& entry : section.value.as_table()) {
      origins.set(section.key + "." + entry.key, origin_text(entry.value.origin));
    }
  }
  return show_json(origins, "  ");
}

} // namespace

namespace {

std::optional<RecipeFormat> format_named(const std::string& name) {
  return name == "toml"   ? std::optional(RecipeFormat::toml)
         : name == "lua"  ? std::optional(RecipeFormat::lua)
         : name == "json" ? std::optional(RecipeFormat::json)
                          : std::nullopt;
}

} // namespace

RecipeFormat recipe_format(const std::string& name) {
  if (const auto format = format_named(name)) {
    return *format;
  }
  throw Error("--format is " + string_text(name) + ", expected toml, lua or json");
}

RecipeFormat recipe_format_of(const std::filesystem::path& file) {
  const std::string extension = file.extension().string();
  if (const auto format = format_named(extension.empty() ? "" : extension.substr(1))) {
    return *format;
  }
  throw Error(
      file.string() + (extension.empty() ? " has no extension" : " ends in \"" + extension + "\"") +
          ", which says no format of recipes",
      "name it .toml, .lua or .json"
  );
}

std::string toml_text(const Table& table) {
  return show_toml(table, /*origins=*/false);
}

std::string show_recipe(const Recipe& recipe, RecipeFormat format, bool origins) {
  const Table& tree = recipe.tree.as_table();
  if (format == RecipeFormat::toml) {
    return show_toml(tree, origins);
  }
  if (format == RecipeFormat::lua) {
    return show_lua(tree, origins);
  }
  if (!origins) {
    return show_json(tree, "") + "\n";
  }
  return "{\n  \"recipe\": " + show_json(tree, "  ") + ",\n  \"origins\": " + json_origins(tree) +
         "\n}\n";
}

} // namespace mh
