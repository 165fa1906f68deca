#pragma once
/// A training command of Megatron-LM as a recipe.

#include "core/recipe/commands.hpp"
#include "core/recipe/import/shell.hpp"
#include "megahost/value.hpp"

#include <string>
#include <vector>

namespace mh {

struct ImportedRecipe {
  Value tree = Table{};              ///< each value's layer is the argument that it comes from
  std::vector<std::string> comments; ///< of arguments without an equivalent, and of what differs

  /// The recipe, an argument behind each value, the comments on top. JSON has no comments: there it
  /// is the values alone.
  [[nodiscard]] std::string text(const std::string& title, RecipeFormat format) const;
};

/// Defaults of Megatron-LM that are not megahost's are written out.
///
/// Throws:  mh::Error, exit code 2: an argument that lacks its value or has one of another kind,
/// arguments that contradict each other, by name, and those without which there is no model
[[nodiscard]] ImportedRecipe import_arguments(const ShellCommand& command);

} // namespace mh
