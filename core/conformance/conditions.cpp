// The test of a plugin's conditions on whole recipes.

#include "megahost/conditions.hpp"

#include "core/base/text.hpp"
#include "core/conformance/instance.hpp"
#include "core/conformance/tests.hpp"
#include "core/recipe/tried.hpp"
#include "core/schema/sections.hpp"
#include "core/session/built_in.hpp"
#include "megahost/error.hpp"
#include "megahost/host.hpp"

#include <algorithm>

namespace mh::check {

namespace {

/// Every key that a recipe with these plugins may have, and the sections themselves; "" is no key
/// (Conditions::degree_key).
std::vector<std::string> known_keys(const std::vector<const Registry::Entry*>& plugins) {
  std::vector<std::string> keys = all_keys(core_schemas());
  keys.insert(keys.end(), section_names().begin(), section_names().end());
  keys.emplace_back();
  for (const Registry::Entry* entry : plugins) {
    const std::string path = option_path(entry->kind);
    keys.push_back(path + ".use");
    for (const Field& field : entry->schema.fields) {
      keys.push_back(path + "." + field.name);
    }
  }
  return keys;
}

/// Whether a key is one of these, or lies in the table of one that holds what it likes.
bool is_known(
    const std::string& key,
    const std::vector<const Registry::Entry*>& plugins,
    const std::vector<std::string>& known
) {
  if (std::find(known.begin(), known.end(), key) != known.end()) {
    return true;
  }
  return std::any_of(plugins.begin(), plugins.end(), [&](const Registry::Entry* entry) {
    return std::any_of(
        entry->schema.fields.begin(),
        entry->schema.fields.end(),
        [&](const Field& field) {
          const bool open = field.type == FieldType::table || field.type == FieldType::any ||
                            field.type == FieldType::plugin;
          return open && key.starts_with(option_path(entry->kind) + "." + field.name + ".");
        }
    );
  });
}

/// A value that is no default, at which conditions go on to ask for other keys: true, 2, a word.
Value given_value(const Field& field) {
  Value one;
  switch (field.type) {
  case FieldType::boolean:
    one = true;
    break;
  case FieldType::integer:
  case FieldType::integer_or_string:
    one = std::max<int64_t>(2, static_cast<int64_t>(field.min.value_or(0)));
    break;
  case FieldType::number:
    one = field.max.value_or(1);
    break;
  case FieldType::string:
    one = field.choices.empty() ? "word" : field.choices.back();
    break;
  case FieldType::plugin:
  case FieldType::table:
  case FieldType::any:
    return field.default_value;
  }
  return field.list ? Value(Value::Array{one}) : one;
}

/// A recipe of the core's fields and the plugins' in which each has a value: its default, or one
/// that is not.
Value whole_recipe(const std::vector<const Registry::Entry*>& plugins, bool defaults) {
  Table tree;
  const auto fill = [&](Table& table, const Schema& schema) {
    for (const Field& field : schema.fields) {
      Value value = defaults && !field.required ? field.default_value : given_value(field);
      if (!value.is_null()) { // absent
        table.set(field.name, std::move(value));
      }
    }
  };
  for (const auto& [name, schema] : core_schemas()) {
    Table section;
    fill(name.empty() ? tree : section, schema);
    if (!name.empty()) {
      tree.set(name, section);
    }
  }
  for (const Registry::Entry* entry : plugins) {
    Value* section = tree.find(option_path(entry->kind));
    if (section != nullptr && section->is_table()) {
      fill(section->as_table(), entry->schema);
    }
  }
  return tree;
}

/// Settings that `megahost plan` tries are of keys that are there, with values that these take.
void check_tried(const Registry::Entry& entry, Host& host) {
  SearchFacts facts{.world = 8, .ranks_per_node = 8, .seq_length = 64, .layers = 8};
  facts.shape.dp = facts.world;
  const SectionSchemas known = section_schemas(host.known(Kind::strategy));
  const Schema& whole = known.at(std::string(info(entry.kind).section));
  const auto check = [&](const std::vector<Table>& tried,
                         const std::string& call,
                         const Schema& others) {
    const std::string fault = tried_fault(entry, tried, others);
    if (!fault.empty()) {
      fail(
          "its " + call + "() " + fault, "name keys of its own fields(), and values that they take"
      );
    }
  };
  if (entry.searched) {
    check(entry.searched(facts), "searched", entry.kind == Kind::strategy ? Schema() : whole);
  }
  Table section;
  for (const Schema& schema : {whole, entry.schema}) {
    for (const Field& field : schema.fields) {
      if (!field.default_value.is_null()) {
        section.set(field.name, field.default_value);
      }
    }
  }
  if (entry.changes) {
    check(entry.changes(facts, section), "changes", whole);
  }
  if (entry.in_force) {
    static_cast<void>(entry.in_force(section)); // which may throw
  }
}

} // namespace

/// A condition on a key that no plugin declares never fires, which a run does not say.
void conditions_known(const Case& c) {
  if (!c.entry->conditions && !c.entry->searched && !c.entry->changes && !c.entry->in_force) {
    not_applicable("it has no conditions on whole recipes");
  }
  Host host;
  merge_built_in(host);
  host.load(c.file);
  std::vector<const Registry::Entry*> plugins;
  for (const KindInfo& kind : kKinds) {
    const auto some = host.known(kind.kind);
    plugins.insert(plugins.end(), some.begin(), some.end());
  }
  const auto known = known_keys(plugins);
  check_tried(*c.entry, host);
  if (!c.entry->conditions) {
    return;
  }
  SectionSchemas schemas = section_schemas(host.known(Kind::strategy));
  for (const Registry::Entry* entry : host.known(Kind::architecture)) { // for layer_keys
    schemas["model"] = with_plugin(schemas["model"], entry->schema);
  }
  Facts facts;
  facts.world = 8;
  for (const bool defaults : {true, false}) {
    Value tree = whole_recipe(plugins, defaults);
    Value* section = tree.as_table().find(option_path(c.entry->kind));
    if (section != nullptr && section->is_table()) {
      for (const auto& option : given_options(c)) {
        section->as_table().set(option.key, option.value);
      }
    }
    std::vector<Problem> problems;
    Conditions conditions(tree, facts, schemas, problems);
    c.entry->conditions(conditions);
    for (const std::string& key : conditions.keys()) {
      if (!is_known(key, plugins, known)) {
        const auto meant = nearest(key, known);
        fail(
            "its conditions ask for " + key + ", a key that no plugin here declares",
            meant ? "did you mean " + *meant + "?"
                  : "install the plugin that declares it, or ask for a key of your own fields()"
        );
      }
    }
  }
}

} // namespace mh::check
