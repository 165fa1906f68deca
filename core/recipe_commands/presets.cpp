#include "core/recipe/presets.hpp"

#include "core/base/folders.hpp"
#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/draw/columns.hpp"
#include "core/language/json_value.hpp"
#include "core/recipe/layouts.hpp"
#include "core/recipe_commands/commands.hpp"
#include "core/schema/sections.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace mh {

namespace {

using Json = nlohmann::ordered_json;

struct PresetTables {
  std::vector<Preset> models;
  std::vector<LayoutPreset> layouts;

  static PresetTables read() {
    ReadOptions options;
    options.roots = recipe_folders();
    return {load_presets(options), load_layouts(options)};
  }

  /// Names of the layouts that were made for a model.
  [[nodiscard]] std::vector<std::string> layouts_for(const std::string& model) const {
    std::vector<std::string> names;
    for (const LayoutPreset& layout : layouts) {
      if (std::find(layout.models.begin(), layout.models.end(), model) != layout.models.end()) {
        names.push_back(layout.name);
      }
    }
    return names;
  }
};

std::string cell(const Value& tree, const char* key) {
  const Value* value = tree.find_path(key);
  return value == nullptr ? "-" : value->is_string() ? value->as_string() : to_text(*value);
}

const Value& parallel_of(const Value& recipe) {
  static const Value kNone = Table{};
  const Value* parallel = recipe.find("parallel");
  return parallel != nullptr ? *parallel : kNone;
}

void print_models(const PresetTables& tables, const Terminal& terminal) {
  std::vector<TextRow> rows{
      {"MODEL", "PARAMETERS", "USE", "LAYERS", "HIDDEN", "HEADS", "TOKENS", "LAYOUTS MADE FOR IT"}};
  for (const Preset& preset : tables.models) {
    const std::string layouts = join(tables.layouts_for(preset.name));
    rows.push_back(
        {preset.name,
         grouped(preset.parameters),
         cell(preset.model, "use"),
         cell(preset.model, "layers"),
         cell(preset.model, "hidden"),
         cell(preset.model, "heads"),
         cell(preset.model, "seq_length"),
         layouts}
    );
  }
  std::fputs(columns(rows, terminal, {Paint::cyan}).c_str(), stdout);
}

void print_layouts(const PresetTables& tables, const Schema& parallel, const Terminal& terminal) {
  std::vector<TextRow> rows{{"LAYOUT", "RANKS", "MODEL", "RECOMPUTE", "BATCH", "PARALLEL"}};
  for (const LayoutPreset& layout : tables.layouts) {
    rows.push_back(
        {layout.name,
         std::to_string(layout.ranks(parallel)),
         layout.models.front(),
         cell(layout.recipe, "recompute.use"),
         cell(layout.recipe, "batch.global"),
         layout_words(parallel_of(layout.recipe), parallel)}
    );
  }
  std::fputs(columns(rows, terminal, {Paint::cyan}).c_str(), stdout);
}

Json to_json(const Preset& preset, const PresetTables& tables) {
  return {
      {"name", preset.name},
      {"kind", "model"},
      {"parameters", preset.parameters},
      {"source", preset.source},
      {"layouts", tables.layouts_for(preset.name)},
      {"recipe", {{"model", json_value(preset.model)}}}};
}

Json to_json(const LayoutPreset& layout, const Schema& parallel) {
  return {
      {"name", layout.name},
      {"kind", "layout"},
      {"ranks", layout.ranks(parallel)},
      {"models", layout.models},
      {"memory", layout.memory},
      {"source", layout.source},
      {"recipe", json_value(layout.recipe)}};
}

/// The preset as a part of a recipe in TOML, below what is known about it.
std::string as_recipe(const std::vector<std::string>& about, Value tree) {
  std::string text;
  for (const std::string& line : about) {
    text += "# " + line + "\n";
  }
  Recipe recipe;
  recipe.tree = std::move(tree);
  std::string body = show_recipe(recipe, RecipeFormat::toml, /*origins=*/false);
  body.pop_back();
  return text + (body.starts_with("\n") ? "" : "\n") + body;
}

std::string text_of(const Preset& preset, const PresetTables& tables) {
  const std::vector<std::string> layouts = tables.layouts_for(preset.name);
  return as_recipe(
      {"preset = \"" + preset.name + "\": " + grouped(preset.parameters) + " parameters",
       "source: " + preset.source,
       layouts.empty() ? "no layout preset was made for it: parallel = {...} says one"
                       : "layouts made for it: " + join(layouts)},
      Table{{"model", preset.model}}
  );
}

std::string text_of(const LayoutPreset& layout, const Schema& parallel) {
  return as_recipe(
      {"preset = \"" + layout.name + "\": " + std::to_string(layout.ranks(parallel)) + " ranks",
       "source: " + layout.source,
       "fits " + layout.memory,
       "made for " + join(layout.models) +
           (layout.models.size() > 1 ? "; the first unless the recipe names a model" : "")},
      layout.recipe
  );
}

} // namespace

int command_presets(const Invocation& invocation, Host& host) {
  const PresetTables tables = PresetTables::read();
  const Schema parallel = shared_schema("parallel", host.known(Kind::strategy));
  if (!invocation.has("--json")) {
    const Terminal terminal = Terminal::of(STDOUT_FILENO);
    print_models(tables, terminal);
    std::puts("");
    print_layouts(tables, parallel, terminal);
    return 0;
  }
  Json all = Json::array();
  for (const Preset& preset : tables.models) {
    all.push_back(to_json(preset, tables));
  }
  for (const LayoutPreset& layout : tables.layouts) {
    all.push_back(to_json(layout, parallel));
  }
  std::puts(all.dump(2).c_str());
  return 0;
}

int command_presets_show(const Invocation& invocation, Host& host) {
  const PresetTables tables = PresetTables::read();
  const Schema parallel = shared_schema("parallel", host.known(Kind::strategy));
  const std::string& wanted = invocation.arguments.front();
  const bool json = invocation.has("--json");
  std::vector<std::string> names;
  for (const Preset& preset : tables.models) {
    if (preset.name == wanted) {
      std::puts((json ? to_json(preset, tables).dump(2) : text_of(preset, tables)).c_str());
      return 0;
    }
    names.push_back(preset.name);
  }
  for (const LayoutPreset& layout : tables.layouts) {
    if (layout.name == wanted) {
      std::puts((json ? to_json(layout, parallel).dump(2) : text_of(layout, parallel)).c_str());
      return 0;
    }
    names.push_back(layout.name);
  }
  const auto meant = nearest(wanted, names);
  throw Error(
      "there is no preset " + wanted,
      (meant ? "did you mean " + *meant + "? " : std::string()) + "megahost presets lists them"
  );
}

} // namespace mh
