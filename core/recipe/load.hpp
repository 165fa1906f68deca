#pragma once
/// From files to layers: `extends`, presets, `--set`, and the merge of all of them.
///
/// Layers from low to high: model preset < layout presets < extended recipes < recipe < layers of
/// the program (--scale) < --set. Tables merge, the right side wins, lists replace. A layer that
/// changes the `use` of a section starts the section anew but for the fields that the core reads
/// itself (optimizer.lr,
/// ...).

#include "core/language/read.hpp"
#include "megahost/recipe.hpp"

#include <filesystem>
#include <string>
#include <vector>

namespace mh {

struct Layer {
  std::string name; ///< "preset llama2-7b", "extends base.toml", "recipe", "--set"
  Value tree;
};

struct LoadOptions : ReadOptions {
  std::vector<std::string> sets{};   ///< "optimizer.lr=1e-3", in the order of the command line
  std::vector<Layer> layers{};       ///< layers of the program, above the recipe and below `sets`
  std::vector<std::string> layout{}; ///< the same as `sets` and above them: one of --layouts
  bool of_run = false;               ///< recipe.toml of a run folder (RecipeFiles), which extends no other
};

/// A recipe file and those that it extends, evaluated: what the command line says is laid on later.
struct RecipeFiles {
  std::string file;
  std::vector<Layer> layers;      ///< low to high
  std::vector<std::string> files; ///< every file that was read
  bool of_run = false;            ///< the recipe.toml of a run folder, whose name alone was given
};

struct Loaded {
  std::string file;
  std::vector<Layer> layers; ///< low to high, without the schemas' defaults
  Value merged;
  std::vector<std::string> files;   ///< every file that was read
  std::vector<std::string> notes{}; ///< sentences that a person should be warned with
  bool of_run = false;              ///< the recipe.toml of a run folder, as RecipeFiles says

  /// The recipe's `plugins` as absolute paths (core/recipe/paths.hpp).
  [[nodiscard]] std::vector<std::string> plugins() const;
};

/// Evaluates a recipe and what it extends; a Lua recipe runs here.
///
/// `file` is taken as it is, else looked up in the roots, with and without an extension.
/// Throws:  mh::Error, RecipeError
[[nodiscard]] RecipeFiles
read_recipe_files(const std::filesystem::path& file, const LoadOptions& options);

/// Layers from low to high, with the program's, `--set` and a layout over them, merged.
///
/// Throws:  mh::Error, RecipeError
[[nodiscard]] Loaded
merged(std::string file, std::vector<Layer> layers, const LoadOptions& options);

/// Lays presets below a recipe, and the program's layers and `--set` over it.
///
/// Throws:  mh::Error, RecipeError
[[nodiscard]] Loaded load_recipe(const RecipeFiles& files, const LoadOptions& options);

/// Both: for a recipe that is loaded once.
[[nodiscard]] Loaded load_recipe(const std::filesystem::path& file, const LoadOptions& options);

/// One "key=value" of the command line. A word that is no TOML value is taken as a string; errors
/// name `option`.
///
/// Throws:  mh::Error, RecipeError
[[nodiscard]] Layer set_layer(const std::string& text, const std::string& option = "--set");

/// `over` laid upon `base`, as above.
[[nodiscard]] Value merge(const Value& base, const Value& over);

} // namespace mh
