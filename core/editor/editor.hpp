#pragma once
/// The files that editors read about recipes, made from the schemas that check them: a JSON Schema
/// for TOML and JSON, annotations of the Lua language server for Lua.

#include "core/recipe/presets.hpp"
#include "megahost/registry.hpp"

#include <string>
#include <vector>

namespace mh {

/// The plugins and presets that a recipe can be made of in addition to the core's own fields.
struct RecipeCatalogue {
  std::vector<const Registry::Entry*> plugins;
  std::vector<Preset> presets;
  std::vector<LayoutPreset> layouts;

  /// The entries of one kind.
  [[nodiscard]] std::vector<const Registry::Entry*> of(Kind kind) const;
};

/// A JSON Schema of a whole recipe: closed tables, one branch per plugin of a section, ranges,
/// defaults and meanings. A recipe with `extends` or `preset` may leave out what those give.
/// Conditions between fields are left to `megahost recipe check`.
///
/// Source:  https://json-schema.org/draft-07 (what Taplo and most editors read)
[[nodiscard]] std::string json_schema(const RecipeCatalogue& catalogue);

/// A `---@meta` file with one exact class for each section and plugin: `megahost.Recipe` is the
/// whole.
///
/// Source:  https://luals.github.io/wiki/annotations
[[nodiscard]] std::string lua_stubs(const RecipeCatalogue& catalogue);

/// The settings `.luarc.json` of the Lua language server for recipes next to the file `stubs`.
[[nodiscard]] std::string luarc(const std::string& stubs);

} // namespace mh
