#pragma once
/// Settings files of other trainers as recipes: torchtitan's, Megatron-Bridge's, NeMo's.

#include "core/import/import.hpp"
#include "core/language/source.hpp"
#include "megahost/value.hpp"

#include <string>

namespace mh {

/// Whether a file of this name and text is settings: TOML or JSON, or YAML that is no manifest of
/// Kubernetes.
[[nodiscard]] bool is_settings(const std::string& file, const std::string& text);

/// The file's tree: JSON where it says so by its name, else TOML or YAML.
///
/// Throws:  RecipeError with the place for bad syntax
[[nodiscard]] Value read_settings(const SourcePtr& source);

/// The recipe that says the same. The program is known by the sections.
///
/// Throws:  mh::Error, RecipeError: sections of no program that is known, and what the program's own
///          reader refuses
[[nodiscard]] ImportedRecipe import_settings(const Value& tree, const std::string& file);

} // namespace mh
