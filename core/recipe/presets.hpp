#pragma once
/// Presets as data: rows of presets/models.toml are sizes of models, rows of presets/layouts.toml
/// are the parts of a recipe that fit a model on so many ranks.
///
/// `preset = "70b-32"` in a recipe lays a layout under it, and with it the model it was made for,
/// unless the recipe names a model of its own; `preset = ["llama3-70b", "70b-32"]` names both.

#include "core/language/read.hpp"
#include "core/recipe/load.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace mh {

/// One row of presets/models.toml.
struct Preset {
  std::string name;
  Value model;            ///< the section `model`: use, seq_length and the architecture's fields
  int64_t parameters = 0; ///< exact, with the row's vocabulary
  std::string source;     ///< source of the numbers
  Origin origin;
};

/// One row of presets/layouts.toml.
struct LayoutPreset {
  std::string name;
  Value recipe;                    ///< sections of a recipe: parallel, recompute, batch, ...
  std::vector<std::string> models; ///< model presets that it was made for; the first is its own
  std::string memory;              ///< the memory it needs to fit, in a sentence
  std::string source;              ///< source of the layout

  /// Ranks that it needs.
  /// `parallel`: the section with the strategies' keys.
  [[nodiscard]] int64_t ranks(const Schema& parallel) const;
};

/// Every row of every root's presets/models.toml; an earlier root hides a later one's row.
///
/// Throws:  RecipeError for a row that lacks `parameters` or `source`
[[nodiscard]] std::vector<Preset> load_presets(const ReadOptions& options);

/// Every row of every root's presets/layouts.toml; an earlier root hides a later one's row.
///
/// Throws:  RecipeError for a row that lacks `models`, `memory` or `source`, or has them of another
/// type
[[nodiscard]] std::vector<LayoutPreset> load_layouts(const ReadOptions& options);

/// Puts the presets that `preset` and `model.preset` name below all layers, and merges anew.
///
/// Throws:  RecipeError for a name that no row has, with the nearest
void lay_on_presets(Loaded& loaded, const ReadOptions& options);

} // namespace mh
