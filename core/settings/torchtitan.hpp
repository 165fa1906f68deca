#pragma once
/// Recipes of torchtitan's settings.

#include "core/import/import.hpp"
#include "megahost/value.hpp"

namespace mh {

/// Whether a tree has the sections of torchtitan's TOML, or of the JSON that it writes of them.
[[nodiscard]] bool is_torchtitan(const Value& tree);

/// Defaults of torchtitan that are not megahost's are written out. Files of 2024, which have degrees
/// in [training] and [experimental], are read, too.
///
/// Throws:  mh::Error, RecipeError: a model or a flavor that is not known, values of another type
/// Source:  pytorch/torchtitan, torchtitan/config/job_config.py of 2024 to 2025 and configs.py of 2026
[[nodiscard]] ImportedRecipe import_torchtitan(const Value& tree);

} // namespace mh
