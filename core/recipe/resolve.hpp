#pragma once
/// From merged layers to a typed recipe: schemas, defaults, contradictions.

#include "core/recipe/load.hpp"
#include "megahost/conditions.hpp"
#include "megahost/kind.hpp"
#include "megahost/recipe.hpp"
#include "megahost/registry.hpp"
#include "megahost/schema.hpp"

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// The declarations of plugins, as the host knows them: this room loads nothing.
struct PluginLookup {
  /// Null if no plugin of that kind has the name.
  std::function<const Registry::Entry*(Kind kind, const std::string& name)> find;
  /// All names of a kind, for suggestions.
  std::function<std::vector<std::string>(Kind kind)> names;
  /// The plugins of a kind that share a section, without being named: strategies. One of each name.
  std::function<std::vector<const Registry::Entry*>(Kind kind)> known;
};

struct Resolved {
  Recipe recipe;
  SectionSchemas schemas; ///< the fields of the plugins in use included
};

/// Throws:  RecipeError with every problem
[[nodiscard]] Resolved
resolve(const Loaded& loaded, const PluginLookup& lookup, const Facts& facts);

/// The launcher that a recipe names, with its options checked: it is asked for the rank before the
/// rest is resolved (launcher.hpp). Nothing if it names none.
///
/// Throws:  RecipeError
[[nodiscard]] std::optional<PluginSection>
resolve_launcher(const Loaded& loaded, const PluginLookup& lookup);

/// Conditions between sections, appended to `problems`; a condition on a key that is already
/// refused is left out. `tree` is complete.
void check_contradictions(
    const Value& tree,
    const Facts& facts,
    const SectionSchemas& schemas,
    std::vector<Problem>& problems
);

} // namespace mh
