#include "core/host/commands/commands.hpp"
#include "core/host/terminal.hpp"
#include "core/recipe/sections.hpp"
#include "core/recipe/text.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace mh {

namespace {

std::string default_text(const Field& field) {
  if (field.required) {
    return "required";
  }
  return field.default_value.is_null() ? "-" : to_text(field.default_value);
}

void print_fields(const Schema& schema, const Terminal& terminal) {
  size_t name = 5, type = 4, value = 7;
  for (const Field& field : schema.fields) {
    name = std::max(name, field.name.size());
    type = std::max(type, describe(field).size());
    value = std::max(value, default_text(field).size());
  }
  const auto cell = [](const std::string& text, size_t width) {
    return text + std::string(width - text.size() + 2, ' ');
  };
  std::printf(
      "\n  %s\n",
      terminal
          .paint(
              Paint::bold,
              cell("FIELD", name) + cell("TYPE", type) + cell("DEFAULT", value) + "MEANING"
          )
          .c_str()
  );
  for (const Field& field : schema.fields) {
    std::printf(
        "  %s%s%s%s%s\n",
        terminal.paint(Paint::cyan, cell(field.name, name)).c_str(),
        cell(describe(field), type).c_str(),
        cell(default_text(field), value).c_str(),
        field.doc.c_str(),
        field.unit.empty() ? "" : (" [" + field.unit + "]").c_str()
    );
  }
}

/// The core's own fields of the section that names this kind, if a plugin supplies that section.
Schema section_fields(Kind kind) {
  Schema schema;
  for (const PluginSectionInfo& section : kPluginSections) {
    if (section.kind == kind) {
      schema = core_schema(section.name);
      std::erase_if(schema.fields, [](const Field& field) { return field.name == "use"; });
    }
  }
  return schema;
}

void print_entry(const Registry::Entry& entry, const Terminal& terminal) {
  const PluginInfo& plugin = *entry.plugin;
  std::printf(
      "%s (%s)\n%s\n",
      terminal.paint(Paint::bold, entry.name).c_str(),
      std::string(info(entry.kind).name).c_str(),
      entry.summary.c_str()
  );
  std::printf(
      "\n  plugin   %s %s: %s\n  licence  %s\n",
      plugin.id.c_str(),
      plugin.version.c_str(),
      plugin.summary.c_str(),
      plugin.license.c_str()
  );
  if (!plugin.file.empty()) {
    std::printf(
        "  file     %s\n  built    %s\n  tag      %s\n",
        plugin.file.c_str(),
        plugin.built_with.c_str(),
        plugin.abi_tag.c_str()
    );
  }
  if (entry.schema.fields.empty()) {
    std::printf("\n  no fields\n");
  } else {
    print_fields(entry.schema, terminal);
  }
  if (const Schema section = section_fields(entry.kind); !section.fields.empty()) {
    std::printf(
        "\n  Besides, the section `%s` of every recipe has:\n",
        std::string(info(entry.kind).section).c_str()
    );
    print_fields(section, terminal);
  }
}

nlohmann::ordered_json json_of(const Field& field) {
  nlohmann::ordered_json json{
      {"name", field.name},
      {"type", describe(field)},
      {"required", field.required},
      {"doc", field.doc}};
  if (!field.default_value.is_null()) {
    json["default"] = to_text(field.default_value);
  }
  if (field.min) {
    json["min"] = *field.min;
    json["min_excluded"] = field.above_min;
  }
  if (field.max) {
    json["max"] = *field.max;
    json["max_excluded"] = field.below_max;
  }
  if (!field.choices.empty()) {
    json["choices"] = field.choices;
  }
  if (!field.unit.empty()) {
    json["unit"] = field.unit;
  }
  return json;
}

nlohmann::ordered_json json_of(const Schema& schema) {
  nlohmann::ordered_json fields = nlohmann::ordered_json::array();
  for (const Field& field : schema.fields) {
    fields.push_back(json_of(field));
  }
  return fields;
}

nlohmann::ordered_json json_of(const Registry::Entry& entry) {
  return {
      {"kind", info(entry.kind).name},
      {"name", entry.name},
      {"id", entry.plugin->id},
      {"version", entry.plugin->version},
      {"summary", entry.summary},
      {"file", entry.plugin->file.string()},
      {"abi_tag", entry.plugin->abi_tag},
      {"fields", json_of(entry.schema)},
      {"section_fields", json_of(section_fields(entry.kind))},
  };
}

} // namespace

int command_plugins_show(const Invocation& invocation, Host& host) {
  const std::string& name = invocation.arguments.front();
  std::vector<const Registry::Entry*> entries;
  std::vector<std::string> known;
  for (const FoundPlugin& found : host.scan()) {
    for (const auto& offer : found.offers) {
      known.push_back(offer.name);
      if (offer.name == name || found.plugin.id + "/" + offer.name == name) {
        // The first of several files with the same id is the one that a run would open.
        const std::string full = found.plugin.id + "/" + offer.name;
        if (host.registry().find(offer.kind, full) == nullptr) {
          host.load(found.plugin.file);
        }
        const Registry::Entry* entry = host.registry().find(offer.kind, full);
        if (std::find(entries.begin(), entries.end(), entry) == entries.end()) {
          entries.push_back(entry);
        }
      }
    }
  }
  if (entries.empty()) {
    const auto meant = nearest(name, known);
    throw Error(
        "no plugin offers \"" + name + "\"",
        (meant ? "did you mean " + *meant + "? " : std::string()) + "megahost plugins lists them"
    );
  }
  if (invocation.has("--json")) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const Registry::Entry* entry : entries) {
      all.push_back(json_of(*entry));
    }
    std::puts(all.dump(2).c_str());
    return 0;
  }
  const Terminal terminal = Terminal::of(STDOUT_FILENO);
  for (const Registry::Entry* entry : entries) {
    std::printf("%s", entry == entries.front() ? "" : "\n");
    print_entry(*entry, terminal);
  }
  return 0;
}

} // namespace mh
