#pragma once
/// The recipe that says the same as another program's command: here a training command of
/// Megatron-LM.

#include "core/import/shell.hpp"
#include "core/recipe/commands.hpp"
#include "megahost/value.hpp"

#include <string>
#include <vector>

namespace mh {

struct ImportedRecipe {
  Value tree = Table{};              ///< each value's layer is the argument or key it comes from
  std::vector<std::string> comments; ///< on what has no equivalent, and on what differs

  /// `key`: "optimizer.lr". `by`: the argument or key that says it, or words on why it is so.
  void set(const std::string& key, Value value, const std::string& by);

  /// The recipe, behind each value where it comes from, the comments on top. JSON has no comments:
  /// there it is the values alone.
  [[nodiscard]] std::string text(const std::string& title, RecipeFormat format) const;
};

/// Defaults of Megatron-LM that are not megahost's are written out.
///
/// Throws:  mh::Error, exit code 2: an argument that lacks its value or has one of another kind,
/// arguments that contradict each other, by name, and those without which there is no model
[[nodiscard]] ImportedRecipe import_arguments(const ShellCommand& command);

} // namespace mh
