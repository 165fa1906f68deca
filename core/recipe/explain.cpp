#include "core/base/text.hpp"
#include "core/recipe/commands.hpp"
#include "core/schema/sections.hpp"
#include "megahost/error.hpp"

#include <algorithm>

namespace mh {

namespace {

/// A key lies in a section, or in a table within one: "parallel.schedule".
const Field* field_of(const Resolved& resolved, const std::string& key) {
  const size_t dot = key.rfind('.');
  const auto schema = resolved.schemas.find(dot == std::string::npos ? "" : key.substr(0, dot));
  if (schema == resolved.schemas.end()) {
    return nullptr;
  }
  return schema->second.find(dot == std::string::npos ? key : key.substr(dot + 1));
}

/// A plugin that is named without options has no table: `device.use` is `device` then.
std::string plain_key(const Resolved& resolved, const std::string& key) {
  constexpr std::string_view kUse = ".use";
  if (!key.ends_with(kUse)) {
    return key;
  }
  std::string whole = key.substr(0, key.size() - kUse.size());
  const Field* field = field_of(resolved, whole);
  return field != nullptr && field->names && field_of(resolved, key) == nullptr ? whole : key;
}

std::string resume_text(const std::string& section, const Field& field) {
  if (may_change_on_resume(section, field)) {
    return "; may change when a run is resumed";
  }
  return field.path ? "; a resumed run must find the same contents there"
                    : "; stays as it is when a run is resumed";
}

std::string padded(std::string text, size_t width) {
  text.resize(std::max(text.size() + 2, width), ' ');
  return text;
}

/// One layer's word on a value.
struct Row {
  std::string layer, value, where;
  Origin origin;
};

bool same_place(const Origin& a, const Origin& b) {
  return a.source == b.source && a.line == b.line && a.column == b.column;
}

/// The default of a key. That of a plugin's name in `field` is the plugin whose options are known.
Value default_of(const Resolved& resolved, const std::string& key, const Field& field) {
  const size_t dot = key.rfind('.'); // the table may lie in a section: parallel.schedule
  if (dot == std::string::npos || key.substr(dot + 1) != "use") {
    return field.default_value;
  }
  const std::string section = key.substr(0, dot);
  const PluginSectionInfo* info = plugin_section(section);
  const Field* whole = field_of(resolved, section); // device = { use = "mine", ... }
  return whole != nullptr && whole->names ? whole->default_value
         : info == nullptr                ? field.default_value
         : info->default_use.empty()      ? Value()
                                          : Value(std::string(info->default_use));
}

/// Low to high; a value that no layer wrote comes last: it was derived, or is a fact of the
/// machine.
std::vector<Row> rows_of(
    const Loaded& loaded, const std::string& key, const Value& usual, const Value* final_value
) {
  std::vector<Row> rows;
  if (!usual.is_null()) {
    rows.push_back({"default", to_text(usual), "", {}});
  }
  for (const Layer& layer : loaded.layers) {
    if (const Value* value = layer.tree.find_path(key)) {
      const Origin& at = value->origin;
      const bool by_command = layer.name == "--set" && at.source;
      rows.push_back({layer.name, to_text(*value), by_command ? at.source->text : at.where(), at});
    }
  }
  if (!final_value) {
    return rows;
  }
  const bool known = std::any_of(rows.begin(), rows.end(), [&](const Row& row) {
    return same_place(row.origin, final_value->origin) &&
           (row.origin.source || row.value == to_text(*final_value));
  });
  if (!known) {
    const std::string& layer = final_value->origin.layer();
    rows.push_back(
        {layer.empty() ? "derived" : layer, to_text(*final_value), "", final_value->origin}
    );
  }
  return rows;
}

std::string explain_leaf(
    const Loaded& loaded, const Resolved& resolved, const std::string& key, const Field& field
) {
  const Value* final_value = resolved.recipe.tree.find_path(key);
  if (!final_value) { // model.preset, whose fields stand in its place
    final_value = loaded.merged.find_path(key);
  }
  std::string text = key + (final_value ? " = " + to_text(*final_value) : " is not set") + "\n  " +
                     field.doc + (field.doc.empty() ? "" : "; ") + describe(field) +
                     (field.unit.empty() ? "" : "; in " + field.unit) +
                     resume_text(split_key(key).first, field) + "\n";
  const std::vector<Row> rows = rows_of(loaded, key, default_of(resolved, key, field), final_value);
  const auto winner = std::find_if(rows.rbegin(), rows.rend(), [&](const Row& row) {
    return final_value && same_place(row.origin, final_value->origin);
  });
  size_t layer_width = 0;
  size_t value_width = 0;
  for (const Row& row : rows) {
    layer_width = std::max(layer_width, row.layer.size() + 2);
    value_width = std::max(value_width, row.value.size() + 2);
  }
  bool dropped = false; // by a layer that starts the section anew with another plugin
  for (const Row& row : rows) {
    const bool wins = winner != rows.rend() && &row == &*winner;
    std::string line = (wins ? "  -> " : "     ") + padded(row.layer, layer_width) +
                       padded(row.value, value_width) + row.where + (dropped ? "  dropped: " : "") +
                       (dropped ? key.substr(0, key.find('.')) + ".use changes above it" : "");
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
    dropped = dropped || wins;
  }
  return text;
}

void collect_leaves(
    const Value& tree, const std::string& path, std::vector<std::pair<std::string, Value>>& leaves
) {
  for (const auto& entry : tree.as_table()) {
    const std::string key = path.empty() ? entry.key : path + "." + entry.key;
    if (entry.value.is_table()) {
      collect_leaves(entry.value, key, leaves);
    } else {
      leaves.emplace_back(key, entry.value);
    }
  }
}

} // namespace

std::string
explain_recipe(const Loaded& loaded, const Resolved& resolved, const std::string& asked) {
  const std::string key = plain_key(resolved, asked);
  const auto section = resolved.schemas.find(key);
  if (!key.empty() && section != resolved.schemas.end()) {
    std::string text;
    for (const Field& field : section->second.fields) {
      text += (text.empty() ? "" : "\n") +
              explain_leaf(loaded, resolved, key + "." + field.name, field);
    }
    return text;
  }
  const Field* field = field_of(resolved, key);
  if (!field) {
    const size_t dot = std::min(key.rfind('.'), key.size());
    const std::string section_key = key.substr(0, dot);
    const Value* named = resolved.recipe.tree.find_path(section_key);
    const Field* plugin = dot < key.size() ? field_of(resolved, section_key) : nullptr;
    if (plugin != nullptr && plugin->names && named != nullptr && named->is_string()) {
      throw Error(
          section_key + " is " + to_text(*named) + " here, without options",
          "write " + section_key + " = { use = " + to_text(*named) + ", " + key.substr(dot + 1) +
              " = ... }; megahost plugins show " + named->as_string() + " lists its options"
      );
    }
    const auto meant = nearest(key, all_keys(resolved.schemas));
    throw Error(
        "this recipe has no key `" + key + "`",
        meant ? "did you mean `" + *meant + "`?" : "megahost recipe show prints every key"
    );
  }
  return explain_leaf(loaded, resolved, key, *field);
}

std::vector<std::string> fields_left_out(const Loaded& loaded, const Resolved& resolved) {
  std::vector<std::string> sentences;
  Value merged = Table{};
  for (const Layer& layer : loaded.layers) {
    const Value before = merged;
    merged = merge(merged, layer.tree);
    for (const PluginSectionInfo& info : kPluginSections) {
      const std::string section(info.name);
      const Value* old = before.find(section);
      const Value* use = layer.tree.find_path(section + ".use");
      if (layer.name != "--set" || old == nullptr || use == nullptr || !old->is_table()) {
        continue;
      }
      std::vector<std::string> lost;
      for (const auto& entry : old->as_table()) {
        const bool known = resolved.schemas.at(section).find(entry.key) != nullptr;
        if (known && loaded.merged.find_path(section + "." + entry.key) == nullptr) {
          lost.push_back(entry.key);
        }
      }
      if (!lost.empty()) {
        sentences.push_back(
            section + ".use = " + to_text(*use) + " starts the section anew: the recipe's " +
            join(lost) + (lost.size() == 1 ? " is" : " are") + " left out; --set " + section + "." +
            lost.front() + "=... gives " + (lost.size() == 1 ? "it" : "them") + " back"
        );
      }
    }
  }
  return sentences;
}

std::vector<Difference> differences(const Value& left, const Value& right) {
  std::vector<std::pair<std::string, Value>> before;
  std::vector<std::pair<std::string, Value>> after;
  collect_leaves(left, "", before);
  collect_leaves(right, "", after);
  const auto find = [](const auto& leaves, const std::string& key) {
    return std::find_if(leaves.begin(), leaves.end(), [&key](const auto& leaf) {
      return leaf.first == key;
    });
  };
  std::vector<Difference> found;
  for (const auto& [key, value] : before) {
    const auto other = find(after, key);
    if (other == after.end()) {
      found.push_back({key, value, std::nullopt});
    } else if (!(other->second == value)) {
      found.push_back({key, value, other->second});
    }
  }
  for (const auto& [key, value] : after) {
    if (find(before, key) == before.end()) {
      found.push_back({key, std::nullopt, value});
    }
  }
  return found;
}

std::string diff_recipes(const Recipe& left, const Recipe& right) {
  std::string text;
  const auto add = [&](const char* sign, const std::string& key, const std::optional<Value>& value
                   ) {
    if (value) {
      const std::string where = value->origin.where();
      text +=
          sign + key + " = " + to_text(*value) + (where.empty() ? "" : "   (" + where + ")") + "\n";
    }
  };
  for (const auto& [key, before, after] : differences(left.tree, right.tree)) {
    add("- ", key, before);
    add("+ ", key, after);
  }
  return text;
}

std::string check_recipe(const Loaded& loaded, const Resolved& resolved) {
  const Recipe& recipe = resolved.recipe;
  const int64_t ranks = recipe.parallel.ranks(), steps = recipe.iterations();
  return loaded.file + " is a valid recipe: model " + recipe.model.use + ", optimizer " +
         recipe.optimizer.use + ", data " + recipe.data.use + ", " + std::to_string(steps) +
         (steps == 1 ? " step of " : " steps of ") + std::to_string(recipe.batch.global) + " x " +
         std::to_string(recipe.model.seq_length) + " tokens, " + recipe.precision + ", " +
         std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks") +
         (std::holds_alternative<std::string>(recipe.parallel.data) ? " or more" : "") + "\n";
}

} // namespace mh
