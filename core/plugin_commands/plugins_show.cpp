#include "core/base/text.hpp"
#include "core/plugin_commands/commands.hpp"
#include "core/plugin_commands/describe.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace mh {

namespace {

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
    std::printf("%s%s", entry == entries.front() ? "" : "\n", describe(*entry, terminal).c_str());
  }
  return 0;
}

} // namespace mh
