#include "core/cli/help.hpp"

#include "core/base/text.hpp"
#include "core/cli/command.hpp"
#include "core/commands/commands.hpp"
#include "core/plugin/catalogue.hpp"
#include "core/plugin_commands/describe.hpp"
#include "core/schema/sections.hpp"
#include "core/schema/terms.hpp"
#include "megahost/error.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace mh {

namespace {

/// A key of a recipe, and who has it.
struct Key {
  std::string name;  ///< "optimizer.betas"
  std::string owner; ///< plugin; empty: the core
  Field field;
};

std::vector<Key> all_keys(const std::vector<const Registry::Entry*>& plugins) {
  std::vector<Key> keys;
  const auto add = [&](const std::string& name, const Field& own) {
    keys.push_back({name, "", own});
    for (const Registry::Entry* entry : plugins) { // options of what the key names
      if (own.names == entry->kind) {
        for (const Field& field : entry->schema.fields) {
          keys.push_back({name + "." + field.name, entry->name, field});
        }
      }
    }
  };
  for (const Field& field : recipe_schema().fields) {
    if (std::find(section_names().begin(), section_names().end(), field.name) ==
        section_names().end()) {
      add(field.name, field);
    }
  }
  for (const std::string& section : section_names()) {
    for (const Field& field : core_schema(section).fields) {
      add(section + "." + field.name, field);
    }
    const PluginSectionInfo* info = plugin_section(section);
    for (const Registry::Entry* entry : plugins) {
      const bool shares = entry->kind == Kind::strategy && mh::info(entry->kind).section == section;
      if (shares || (info != nullptr && entry->kind == info->kind)) {
        for (const Field& field : entry->schema.fields) {
          keys.push_back({section + "." + field.name, entry->name, field});
        }
      }
    }
  }
  return keys;
}

/// All about a field, on one line.
std::string meaning(const Field& field) {
  std::string text = field.doc + (field.doc.empty() ? "" : "; ") + describe(field);
  text += field.unit.empty() ? "" : "; in " + field.unit;
  text += field.required                  ? "; required"
          : field.default_value.is_null() ? ""
                                          : "; default " + to_text(field.default_value);
  return text;
}

std::string key_text(const Key& key, const Terminal& terminal) {
  return terminal.paint(Paint::bold, key.name) + (key.owner.empty() ? "" : " (" + key.owner + ")") +
         "\n  " + meaning(key.field) + "\n" +
         (key.field.item ? "\n" + field_lines(*key.field.item, terminal) : "");
}

/// A word alone is meant in every section that has it. Plugins that mean the same share one entry.
std::vector<Key> meant_by(const std::string& topic, const std::vector<Key>& keys) {
  std::vector<Key> found;
  for (const Key& key : keys) {
    if (key.name != topic && !key.name.ends_with("." + topic)) {
      continue;
    }
    const auto same = std::find_if(found.begin(), found.end(), [&](const Key& other) {
      return other.name == key.name && !other.owner.empty() &&
             meaning(other.field) == meaning(key.field);
    });
    if (same == found.end()) {
      found.push_back(key);
    } else {
      same->owner += ", " + key.owner;
    }
  }
  return found;
}

std::string section_text(
    const std::string& name,
    const std::vector<const Registry::Entry*>& plugins,
    const Terminal& terminal
) {
  std::string text = "The section " + terminal.paint(Paint::bold, name) +
                     " of a recipe: " + section_doc(name) + "\n\n" +
                     field_lines(shared_schema(name, plugins), terminal);
  const PluginSectionInfo* info = plugin_section(name);
  if (info == nullptr) {
    return text;
  }
  text += "\nand the fields of the plugin that `use` names:\n\n";
  for (const Registry::Entry* entry : plugins) {
    if (entry->kind == info->kind) {
      text += "  " + terminal.paint(Paint::cyan, entry->name) + ": " + entry->summary +
              (entry->name == info->default_use ? " (unless another is named)" : "") + "\n";
    }
  }
  return text + "\nmegahost help NAME lists them.\n";
}

[[noreturn]] void no_topic(
    const std::string& topic,
    const std::vector<Key>& keys,
    const std::vector<const Registry::Entry*>& plugins
) {
  std::vector<std::string> known = section_names();
  for (const Command& command : commands()) {
    known.push_back(command.name);
  }
  for (const Topic& other : topics()) {
    known.emplace_back(other.name);
  }
  for (const Term& term : glossary()) {
    known.emplace_back(term.name);
  }
  for (const Registry::Entry* entry : plugins) {
    known.push_back(entry->name);
  }
  for (const Key& key : keys) {
    known.push_back(key.name);
    known.push_back(key.name.substr(key.name.find('.') + 1));
  }
  const size_t dashes = std::min(topic.size(), topic.find_first_not_of('-')); // --num-layers
  const auto foreign = meaning_of(topic.substr(dashes), section_schemas(plugins));
  const auto meant = foreign && !foreign->key.empty() ? foreign->key : nearest(topic, known);
  throw Error(
      "there is no help on \"" + topic + "\"",
      (meant ? "did you mean megahost help " + *meant + "? " : std::string()) +
          "topics are commands, plugins, keys of a recipe such as optimizer.lr, and concepts: see "
          "megahost help help"
  );
}

/// Whether the program has printed help on the topic before it opened this library.
bool is_printed(const std::string& topic) {
  return find_command(topic) != nullptr || find_topic(topic) != nullptr ||
         find_term(topic) != nullptr || !group_help(topic, {}).empty();
}

} // namespace

int command_help(const Invocation& invocation, Host& host) {
  const std::string topic = join(invocation.arguments, " ");
  const std::vector<const Registry::Entry*> plugins = open_all(host);
  const std::vector<Key> keys = all_keys(plugins);
  const Terminal terminal = Terminal::of(STDOUT_FILENO);
  std::vector<std::string> parts;
  if (std::find(section_names().begin(), section_names().end(), topic) != section_names().end()) {
    parts.push_back(section_text(topic, plugins, terminal));
  }
  for (const Registry::Entry* entry : plugins) {
    if (entry->name == topic || entry->full_name() == topic) {
      parts.push_back(describe(*entry, terminal));
    }
  }
  for (const Key& key : meant_by(topic, keys)) {
    parts.push_back(key_text(key, terminal));
  }
  const bool printed = is_printed(topic);
  if (parts.empty() && !printed) {
    no_topic(topic, keys, plugins);
  }
  std::fputs(((printed && !parts.empty() ? "\n" : "") + join(parts, "\n")).c_str(), stdout);
  return 0;
}

} // namespace mh
