#include "core/recipe/presets.hpp"

#include "core/base/text.hpp"
#include "core/language/problem.hpp"
#include "megahost/conditions.hpp"

#include <algorithm>
#include <functional>
#include <set>

namespace mh {

namespace {

namespace fs = std::filesystem;

/// Calls `take` for the rows of a table of presets in every root; an earlier root hides a later
/// one's row.
void each_row(
    const ReadOptions& options,
    const char* table,
    const std::function<void(const Table::Entry& row)>& take
) {
  std::set<std::string> seen;
  for (const fs::path& root : options.roots) {
    const fs::path file = root / "presets" / table;
    std::error_code ignored;
    if (!fs::is_regular_file(file, ignored)) {
      continue;
    }
    const Value rows = read_toml(read_source(file, "preset"));
    for (const auto& row : rows.as_table()) {
      if (seen.insert(row.key).second) {
        take(row);
      }
    }
  }
}

[[noreturn]] void refuse_row(const Table::Entry& row, const std::string& what) {
  throw RecipeError({{row.key_origin, row.key, "preset " + row.key + " " + what, "", ""}});
}

bool is_text(const Value& value) {
  return value.is_string() && !value.as_string().empty();
}

template <class Row>
const Row* find_row(const std::vector<Row>& rows, const std::string& name) {
  const auto found =
      std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row.name == name; });
  return found == rows.end() ? nullptr : &*found;
}

template <class Row>
void add_names(std::vector<std::string>& names, const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    names.push_back(row.name);
  }
}

/// The rows of both tables, and the layers that a recipe's words make of them.
class Presets {
public:
  explicit Presets(const ReadOptions& options)
      : models_(load_presets(options))
      , layouts_(load_layouts(options)) {}

  /// The layouts that `wanted` names, in its order; a model that it names goes to `ret_model`.
  std::vector<const LayoutPreset*> layouts(const Value& wanted, Value& ret_model) const {
    std::vector<const LayoutPreset*> found;
    const Value::Array names = wanted.is_array() ? wanted.as_array() : Value::Array{wanted};
    for (Value name : names) {
      if (!name.origin.source) {
        name.origin = wanted.origin;
      }
      const std::string text = name.is_string() ? name.as_string() : "";
      if (const LayoutPreset* layout = find_row(layouts_, text)) {
        found.push_back(layout);
      } else if (find_row(models_, text) != nullptr) {
        ret_model = name;
      } else {
        refuse(name, "preset");
      }
    }
    return found;
  }

  Layer model_layer(const Value& wanted) const {
    const Preset* preset = wanted.is_string() ? find_row(models_, wanted.as_string()) : nullptr;
    if (preset == nullptr) {
      refuse(wanted, "model.preset");
    }
    return {"preset " + preset->name, Table{{"model", preset->model, preset->origin}}};
  }

private:
  [[noreturn]] void refuse(const Value& wanted, const std::string& key) const {
    const bool any = key == "preset";
    std::vector<std::string> names;
    add_names(names, models_);
    if (any) {
      add_names(names, layouts_);
    }
    const auto meant = wanted.is_string() ? nearest(wanted.as_string(), names) : std::nullopt;
    const std::string expected =
        any ? "expected the name of a model or layout preset" : "expected the name of a preset";
    const std::string note = names.empty() ? "no recipe folder holds presets/models.toml"
                                           : "megahost presets lists them";
    throw RecipeError(
        {{wanted.origin,
          key,
          key + " is " + to_text(wanted) + ", " + expected,
          meant ? "did you mean `" + *meant + "`?" : "",
          note}}
    );
  }

  std::vector<Preset> models_;
  std::vector<LayoutPreset> layouts_;
};

/// The layer of a model as it is merged: the preset names a plugin only as a default, another one
/// that has the same fields may take them.
Value with_use(const Layer& layer, const Value& merged) {
  Value tree = layer.tree;
  if (const Value* use = merged.find_path("model.use")) {
    tree.as_table().find("model")->as_table().set("use", *use);
  }
  return tree;
}

} // namespace

int64_t LayoutPreset::ranks(const Schema& parallel) const {
  const Facts facts;
  const SectionSchemas schemas{{"parallel", parallel}};
  std::vector<Problem> none;
  const Conditions layout(recipe, facts, schemas, none);
  return layout.model_ranks() * layout.degree(MeshAxis::dp);
}

std::vector<Preset> load_presets(const ReadOptions& options) {
  std::vector<Preset> presets;
  each_row(options, "models.toml", [&](const Table::Entry& row) {
    Preset preset{row.key, row.value, 0, "", row.key_origin};
    if (const Value same = preset.model.as_table().take("is"); is_text(same)) {
      const Preset* other = find_row(presets, same.as_string());
      if (other == nullptr) {
        refuse_row(row, "is " + to_text(same) + ", expected the name of a row above it");
      }
      preset.model = other->model;
      preset.model.as_table().set("parameters", other->parameters);
      preset.model.as_table().set("source", *row.value.find("source"));
    }
    const Value parameters = preset.model.as_table().take("parameters");
    const Value source = preset.model.as_table().take("source");
    if (!parameters.is_integer() || !is_text(source)) {
      refuse_row(row, "lacks `parameters` or `source`, expected both");
    }
    preset.parameters = parameters.as_integer();
    preset.source = source.as_string();
    presets.push_back(std::move(preset));
  });
  return presets;
}

std::vector<LayoutPreset> load_layouts(const ReadOptions& options) {
  std::vector<LayoutPreset> layouts;
  each_row(options, "layouts.toml", [&](const Table::Entry& row) {
    LayoutPreset layout{row.key, row.value, {}, "", ""};
    const Value models = layout.recipe.as_table().take("models");
    const Value memory = layout.recipe.as_table().take("memory");
    const Value source = layout.recipe.as_table().take("source");
    const bool named = models.is_array() && !models.as_array().empty() &&
                       std::all_of(models.as_array().begin(), models.as_array().end(), is_text);
    if (!named || !is_text(memory) || !is_text(source)) {
      refuse_row(row, "lacks `models`, `memory` or `source`, expected all three");
    }
    for (const Value& model : models.as_array()) {
      layout.models.push_back(model.as_string());
    }
    layout.memory = memory.as_string();
    layout.source = source.as_string();
    layouts.push_back(std::move(layout));
  });
  return layouts;
}

void lay_on_presets(Loaded& loaded, const ReadOptions& options) {
  const Value* wanted = loaded.merged.find("preset");
  const Value* model_wanted = loaded.merged.find_path("model.preset");
  if (wanted == nullptr && model_wanted == nullptr) {
    return;
  }
  const Presets presets(options);
  Value model;
  std::vector<const LayoutPreset*> layouts;
  if (wanted != nullptr) {
    layouts = presets.layouts(*wanted, model);
  }
  if (model_wanted != nullptr) {
    model = *model_wanted;
  } else if (model.is_null() && !layouts.empty() && loaded.merged.find_path("model.use") == nullptr) {
    model = layouts.back()->models.front();
    model.origin = wanted->origin;
  }
  std::vector<Layer> lowest;
  Value merged = Table{};
  if (!model.is_null()) {
    lowest.push_back(presets.model_layer(model));
    merged = with_use(lowest.back(), loaded.merged);
  }
  for (const LayoutPreset* layout : layouts) {
    lowest.push_back({"preset " + layout->name, layout->recipe});
    merged = merge(merged, layout->recipe);
  }
  for (const Layer& layer : loaded.layers) {
    merged = merge(merged, layer.tree);
  }
  loaded.merged = std::move(merged);
  loaded.layers.insert(loaded.layers.begin(), lowest.begin(), lowest.end());
}

} // namespace mh
