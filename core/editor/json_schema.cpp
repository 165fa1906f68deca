#include "core/editor/editor.hpp"
#include "core/language/json_value.hpp"
#include "core/schema/sections.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace mh {

namespace {

using Json = nlohmann::ordered_json;

Json refer(const std::string& definition) {
  return {{"$ref", "#/definitions/" + definition}};
}

Json number(const Field& field, const char* type) {
  Json json{{"type", type}};
  if (field.min) {
    json[field.above_min ? "exclusiveMinimum" : "minimum"] = *field.min;
  }
  if (field.max) {
    json[field.below_max ? "exclusiveMaximum" : "maximum"] = *field.max;
  }
  return json;
}

Json word(const Field& field) {
  Json json{{"type", "string"}};
  if (!field.choices.empty()) {
    json[field.parts ? "examples" : "enum"] = field.choices;
  }
  return json;
}

Json closed(const Schema& schema, const std::string& doc);
std::vector<std::string> required(const Schema& schema);

Json one(const Field& field) {
  switch (field.type) {
  case FieldType::boolean:
    return {{"type", "boolean"}};
  case FieldType::integer:
    return number(field, "integer");
  case FieldType::number:
    return number(field, "number");
  case FieldType::string:
    return word(field);
  case FieldType::integer_or_string:
    return {{"anyOf", {number(field, "integer"), word(field)}}};
  case FieldType::plugin:
    return word(field);
  case FieldType::table: {
    if (!field.item) {
      return {{"type", "object"}};
    }
    Json json = closed(*field.item, "");
    json["required"] = required(*field.item);
    return json;
  }
  case FieldType::any:
    break;
  }
  return Json::object();
}

Json property(const Field& field) {
  Json json = field.list ? Json{{"type", "array"}, {"items", one(field)}} : one(field);
  if (!field.doc.empty()) {
    json["description"] = field.doc + (field.unit.empty() ? "" : " [" + field.unit + "]");
  }
  if (!field.default_value.is_null()) {
    json["default"] = json_value(field.default_value);
  }
  return json;
}

/// A closed table. Its required keys are added once it is whole.
Json closed(const Schema& schema, const std::string& doc) {
  Json json{{"type", "object"}};
  if (!doc.empty()) {
    json["description"] = doc;
  }
  json["properties"] = Json::object();
  for (const Field& field : schema.fields) {
    json["properties"][field.name] = property(field);
  }
  json["additionalProperties"] = false;
  return json;
}

std::vector<std::string> required(const Schema& schema) {
  std::vector<std::string> names;
  for (const Field& field : schema.fields) {
    if (field.required && field.name != "use") {
      names.push_back(field.name);
    }
  }
  return names;
}

class RecipeSchema {
public:
  explicit RecipeSchema(const RecipeCatalogue& catalogue)
      : catalogue_(catalogue) {}

  Json make() {
    Json top = closed(recipe_schema(), "");
    Json& properties = top["properties"];
    name_plugins(recipe_schema(), properties);
    properties["extends"].update(
        {{"anyOf", {{{"type", "string"}}, {{"type", "array"}, {"items", {{"type", "string"}}}}}}}
    );
    const Json preset{{"enum", preset_names(/*layouts=*/true)}};
    properties["preset"].update({{"anyOf", {preset, {{"type", "array"}, {"items", preset}}}}});
    properties["sweep"].update(closed(sweep_schema(), recipe_schema().find("sweep")->doc));
    Json whole = Json::object(), extended = Json::object();
    for (const std::string& name : section_names()) {
      const PluginSectionInfo* section = plugin_section(name);
      if (section == nullptr) {
        const Schema schema = shared_schema(name, catalogue_.plugins);
        definitions_[name] = closed(schema, section_doc(name));
        name_plugins(schema, definitions_[name]["properties"]);
        properties[name] = refer(name);
        continue;
      }
      plugin_section_of(*section);
      properties[name] = {{"type", "object"}, {"description", section_doc(name)}};
      whole[name] = refer(name);
      extended[name] = refer(name + ".extended");
    }
    Json whole_requires = Json::array();
    for (const auto& section : kPluginSections) {
      if (section.default_use.empty()) {
        whole_requires.push_back(section.name);
      }
    }
    Json json{{"$schema", "http://json-schema.org/draft-07/schema#"}, {"title", "megahost recipe"}};
    json.update(top);
    const Json stands_on_others{
        {"anyOf", {{{"required", {"extends"}}}, {{"required", {"preset"}}}}}};
    Json part = stands_on_others;
    part["properties"] = extended;
    json["oneOf"] = {
        {{"not", stands_on_others}, {"required", whole_requires}, {"properties", whole}},
        std::move(part)};
    json["definitions"] = std::move(definitions_);
    return json;
  }

private:
  /// Keys whose value is a plugin: its name, or a table of `use` and its options.
  void name_plugins(const Schema& schema, Json& ret_properties) const {
    for (const Field& field : schema.fields) {
      if (!field.names) {
        continue;
      }
      Json names = Json::array(), tables = Json::array(), bare = Json::array();
      if (!field.default_value.is_null()) {
        names.push_back(field.default_value.as_string());
      }
      for (const Registry::Entry* entry : catalogue_.of(*field.names)) {
        if (std::find(names.begin(), names.end(), entry->name) == names.end()) {
          names.push_back(entry->name);
        }
        if (entry->schema.fields.empty()) {
          bare.push_back(entry->name);
          bare.push_back(entry->plugin->id + "/" + entry->name);
        } else {
          Json table = closed(entry->schema, entry->summary);
          table["properties"]["use"] = {
              {"enum", {entry->name, entry->plugin->id + "/" + entry->name}}};
          table["required"] = required(entry->schema);
          table["required"].push_back("use");
          tables.push_back(std::move(table));
        }
      }
      Json& property = ret_properties[field.name];
      if (names.empty()) { // no plugin of the kind is found
        continue;
      }
      if (!bare.empty()) { // a table that has nothing but the name
        tables.push_back(
            {{"type", "object"},
             {"properties", {{"use", {{"enum", bare}}}}},
             {"required", {"use"}},
             {"additionalProperties", false}}
        );
      }
      property.erase("type");
      property["anyOf"] = Json::array({{{"type", "string"}, {"enum", names}}});
      property["anyOf"].insert(property["anyOf"].end(), tables.begin(), tables.end());
    }
  }

  /// A section's definitions: each plugin's table; one of them, whole; and part of one, as a
  /// recipe with `extends` or `preset` gives it.
  void plugin_section_of(const PluginSectionInfo& section) {
    const std::string name(section.name);
    Json whole = Json::array(), with_use = Json::array(), any = Json::array();
    for (const Registry::Entry* entry : catalogue_.of(section.kind)) {
      const Schema schema = with_plugin(core_schema(name), entry->schema);
      const std::string table = name + "." + entry->name;
      definitions_[table] = closed(schema, entry->summary);
      Json& properties = definitions_[table]["properties"];
      properties["use"].update(
          {{"enum", {entry->name, entry->plugin->id + "/" + entry->name}}, {"default", entry->name}}
      );
      Json branch = refer(table), needs{{"required", required(schema)}};
      if (properties.contains("preset")) {
        properties["preset"]["enum"] = preset_names(/*layouts=*/false);
        branch = both(branch, use_or_preset(*entry));
      } else if (entry->name != section.default_use) {
        needs["required"].push_back("use");
      }
      whole.push_back(needs["required"].empty() ? branch : both(branch, needs));
      with_use.push_back(both(refer(table), {{"required", {"use"}}}));
      any.push_back(refer(table));
    }
    if (core_schema(name).find("from") != nullptr) { // which says the architecture, too
      whole.push_back(
          both({{"not", {{"required", {"use"}}}}, {"required", {"from"}}}, {{"anyOf", any}})
      );
    }
    with_use.push_back(both({{"not", {{"required", {"use"}}}}}, {{"anyOf", any}}));
    definitions_[name] = {{"description", section_doc(name)}, {"oneOf", whole}};
    definitions_[name + ".extended"] = {{"description", section_doc(name)}, {"oneOf", with_use}};
  }

  static Json both(Json first, Json second) {
    return {{"allOf", {std::move(first), std::move(second)}}};
  }

  std::vector<std::string> preset_names(bool layouts) const {
    std::vector<std::string> names;
    for (const Preset& preset : catalogue_.presets) {
      names.push_back(preset.name);
    }
    for (const LayoutPreset& layout : catalogue_.layouts) {
      if (layouts) {
        names.push_back(layout.name);
      }
    }
    return names;
  }

  /// The architecture is named, or the preset is one of it.
  Json use_or_preset(const Registry::Entry& entry) const {
    Json names = Json::array();
    for (const Preset& preset : catalogue_.presets) {
      const Value* use = preset.model.find("use");
      if (use && use->is_string() && use->as_string() == entry.name) {
        names.push_back(preset.name);
      }
    }
    if (names.empty()) {
      return {{"required", {"use"}}};
    }
    return {
        {"anyOf",
         {{{"required", {"use"}}},
          {{"required", {"preset"}}, {"properties", {{"preset", {{"enum", std::move(names)}}}}}}}}};
  }

  const RecipeCatalogue& catalogue_;
  Json definitions_ = Json::object();
};

} // namespace

std::vector<const Registry::Entry*> RecipeCatalogue::of(Kind kind) const {
  std::vector<const Registry::Entry*> some;
  std::copy_if(
      plugins.begin(),
      plugins.end(),
      std::back_inserter(some),
      [kind](const Registry::Entry* entry) { return entry->kind == kind; }
  );
  return some;
}

std::string json_schema(const RecipeCatalogue& catalogue) {
  return RecipeSchema(catalogue).make().dump(2) + "\n";
}

} // namespace mh
