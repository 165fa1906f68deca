#pragma once
/// A recipe's model and the config.json of a Hugging Face folder: one taken from the other, or
/// compared with it.

#include "core/import/hugging_face.hpp"
#include "core/recipe/load.hpp"
#include "megahost/host.hpp"
#include "megahost/recipe.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// The architecture whose mapping has the model_type of a folder's config.json, and what that says.
struct ModelOfFolder {
  const Registry::Entry* entry = nullptr;
  HfReading reading;
};

/// `use` is the architecture's name; empty: the one that has this model_type, looked for among open
/// plugins and those of the search path.
///
/// Throws:  mh::Error (exit code 5), RecipeError; see read_hf_fields
[[nodiscard]] ModelOfFolder
model_of_folder(const std::filesystem::path& folder, const std::string& use, Host& host);

/// Puts what the folder of `model.from` says below all layers of a recipe, and merges anew.
///
/// Unknown keys become a note of the recipe.
///
/// Throws:  RecipeError for each value of the recipe that says otherwise
void lay_on_model_from(Loaded& loaded, Host& host);

/// What of a folder does not contradict the recipe, but is to be said; empty if there is nothing.
struct FolderWarnings {
  std::string unknown; ///< keys of its config.json
  std::string longer;  ///< samples beyond the length that the model is good for
  std::string allowed; ///< fields that differ and may
};

/// Compares a recipe's model with the config.json of the weights that it is given: that text, or
/// the folder's file. `allowed`: keys and sections that may differ (`is_allowed`).
///
/// Throws:  mh::Error (exit code 5) that names each other field that differs
[[nodiscard]] FolderWarnings require_model_of_folder(
    const std::filesystem::path& folder,
    const std::optional<std::string>& config,
    const Recipe& recipe,
    int64_t vocab,
    const std::vector<std::string>& allowed,
    Host& host
);

} // namespace mh
