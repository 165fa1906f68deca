#include "core/schema/unknown.hpp"

#include "core/base/text.hpp"
#include "core/schema/sections.hpp"
#include "core/schema/terms.hpp"

#include <algorithm>
#include <utility>

namespace mh {

namespace {

std::vector<std::string> names(const Schema& schema) {
  std::vector<std::string> names;
  for (const Field& field : schema.fields) {
    names.push_back(field.name);
  }
  return names;
}

std::string did_you_mean(const std::string& key) {
  return "did you mean `" + key + "`?";
}

/// "batch.global: samples per step", empty for a plugin's field.
std::string documentation(const std::string& key, const SectionSchemas& known) {
  const auto [section, name] = split_key(key);
  const auto schema = known.find(section);
  const Field* field = schema == known.end() ? nullptr : schema->second.find(name);
  return field == nullptr || field->doc.empty() ? "" : key + ": " + field->doc;
}

/// The keys that a table of this schema may hold.
std::string what_it_takes(const Schema& schema, const std::string& path) {
  if (schema.fields.empty()) {
    return "a recipe has no section " + path;
  }
  const Field* use = schema.find("use");
  if (use && use->default_value.is_string()) {
    const std::string plugin = use->default_value.as_string();
    return path + " \"" + plugin + "\" takes: " + join(names(schema)) + " (megahost plugins show " +
           plugin + ")";
  }
  return (path.empty() ? "a recipe" : path) + " takes: " + join(names(schema));
}

Problem unknown_option(
    const Schema& schema,
    const Table::Entry& entry,
    const std::string& path,
    const SectionSchemas& known
) {
  const std::string key = path.empty() ? entry.key : path + "." + entry.key;
  Problem problem{
      entry.key_origin.source ? entry.key_origin : entry.value.origin,
      key,
      "unknown option `" + valid_utf8(entry.key) + "`" + (path.empty() ? "" : " in " + path),
      "no such option",
      what_it_takes(schema, path)};
  const auto meaning = meaning_of(key, known);
  const auto [section, name] = split_key(meaning ? meaning->key : "");
  const bool here = section == path;                   // where the section's plugin may lack it
  const bool around = path.starts_with(section + "."); // a table within it has options of its own
  if (!name.empty() && !around && (!here || schema.find(name) != nullptr)) {
    problem.label = did_you_mean(here ? name : meaning->key);
    if (std::string what = documentation(meaning->key, known); !what.empty()) {
      problem.note = std::move(what);
    }
  } else if (const auto meant = nearest(entry.key, names(schema))) {
    problem.label = did_you_mean(*meant);
  } else if (meaning && name.empty()) {
    problem.label = "no such option: " + meaning->note;
  }
  return problem;
}

/// Whether a table is a section of ours whose name is misspelt, by the keys in it.
bool is_misspelt(const Schema& recipe, const Table::Entry& entry, const SectionSchemas& known) {
  const auto meant = nearest(entry.key, names(recipe));
  const auto& sections = section_names();
  return meant && std::find(sections.begin(), sections.end(), *meant) != sections.end() &&
         std::any_of(
             entry.value.as_table().begin(),
             entry.value.as_table().end(),
             [&](const Table::Entry& inner) { return known.at(*meant).find(inner.key) != nullptr; }
         );
}

} // namespace

void report_unknown(
    const Schema& schema,
    const Table::Entry& entry,
    const std::string& path,
    const SectionSchemas& known,
    std::vector<Problem>& ret_problems
) {
  const bool is_section =
      path.empty() && entry.value.is_table() && !is_misspelt(schema, entry, known);
  const auto is_known = [&](const Table::Entry& inner) {
    return meaning_of(entry.key + "." + inner.key, known).has_value();
  };
  const auto& inside = is_section ? entry.value.as_table() : Table();
  if (std::none_of(inside.begin(), inside.end(), is_known)) {
    ret_problems.push_back(unknown_option(schema, entry, path, known));
    return;
  }
  for (const Table::Entry& inner : inside) {
    ret_problems.push_back(unknown_option(Schema{}, inner, entry.key, known));
  }
}

} // namespace mh
