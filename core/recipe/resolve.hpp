#pragma once
/// From merged layers to a typed recipe: schemas, defaults, contradictions.

#include "core/recipe/load.hpp"
#include "megahost/kind.hpp"
#include "megahost/recipe.hpp"
#include "megahost/schema.hpp"

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace mh {

/// The plugins' schemas, as the host knows them: this room loads nothing.
struct SchemaLookup {
  /// Null if no plugin of that kind has the name.
  std::function<const Schema*(Kind kind, const std::string& name)> find;
  /// All names of a kind, for suggestions.
  std::function<std::vector<std::string>(Kind kind)> names;
};

struct Resolved {
  Recipe recipe;
  std::map<std::string, Schema>
      schemas; ///< per section, the plugin's fields included; "" is the top level
};

/// Throws:  RecipeError with every problem
[[nodiscard]] Resolved
resolve(const Loaded& loaded, const SchemaLookup& lookup, const Facts& facts);

/// Conditions between sections, appended to `problems`; a condition on a key that is already
/// refused is left out. `tree` is complete.
void check_contradictions(const Value& tree, const Facts& facts, std::vector<Problem>& problems);

} // namespace mh
