#include "core/plugin_commands/describe.hpp"

#include "core/schema/sections.hpp"

#include <algorithm>

namespace mh {

namespace {

std::string default_text(const Field& field) {
  if (field.required) {
    return "required";
  }
  return field.default_value.is_null() ? "-" : to_text(field.default_value);
}

} // namespace

std::string field_lines(const Schema& schema, const Terminal& terminal) {
  size_t name = 5, type = 4, value = 7;
  for (const Field& field : schema.fields) {
    name = std::max(name, field.name.size());
    type = std::max(type, describe(field).size());
    value = std::max(value, default_text(field).size());
  }
  const auto cell = [](const std::string& text, size_t width) {
    return text + std::string(width - text.size() + 2, ' ');
  };
  std::string text =
      "  " +
      terminal.paint(
          Paint::bold, cell("FIELD", name) + cell("TYPE", type) + cell("DEFAULT", value) + "MEANING"
      ) +
      "\n";
  for (const Field& field : schema.fields) {
    text += "  " + terminal.paint(Paint::cyan, cell(field.name, name)) +
            cell(describe(field), type) + cell(default_text(field), value) + field.doc +
            (field.unit.empty() ? "" : " [" + field.unit + "]") + "\n";
  }
  return text;
}

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

std::string describe(const Registry::Entry& entry, const Terminal& terminal) {
  const PluginInfo& plugin = *entry.plugin;
  std::string text = terminal.paint(Paint::bold, entry.name) + " (" +
                     std::string(info(entry.kind).name) + ")\n" + entry.summary +
                     "\n\n  plugin   " + plugin.id + " " + plugin.version + ": " + plugin.summary +
                     "\n  licence  " + plugin.license + "\n";
  if (!plugin.file.empty()) {
    text += "  file     " + plugin.file.string() + "\n  built    " + plugin.built_with +
            "\n  tag      " + plugin.abi_tag + "\n";
  }
  const std::string name(info(entry.kind).section);
  const bool by_use = plugin_section(name) != nullptr && plugin_section(name)->kind == entry.kind;
  text +=
      entry.schema.fields.empty() ? "\n  no fields\n" : "\n" + field_lines(entry.schema, terminal);
  if (by_use && !entry.schema.fields.empty()) {
    text += "\n  " + resume_rule(name, entry.schema) + "\n";
  }
  if (const Schema section = section_fields(entry.kind); !section.fields.empty()) {
    text += "\n  Besides, the section `" + std::string(info(entry.kind).section) +
            "` of every recipe has:\n\n" + field_lines(section, terminal) + "\n  " +
            resume_rule(name, section) + "\n";
  }
  return text;
}

} // namespace mh
