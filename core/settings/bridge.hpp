#pragma once
/// Recipes of the settings of Megatron-Bridge and NeMo, by the table of Megatron-LM's arguments.

#include "core/import/import.hpp"
#include "megahost/value.hpp"

namespace mh {

/// Whether a tree is a ConfigContainer of Megatron-Bridge (run_config.yaml), or of the same sections.
[[nodiscard]] bool is_bridge(const Value& tree);

/// Settings that have the names of Megatron-LM's arguments are those arguments; the others have rows
/// of their own.
///
/// Throws:  mh::Error, RecipeError with the place: adapters, samples of conversations, images, values
///          of another type, and what import_arguments refuses
/// Source:  NVIDIA-NeMo/Megatron-Bridge, training/config.py; megatron-core 0.16.1, the dataclasses of
///          its configurations
[[nodiscard]] ImportedRecipe import_bridge(const Value& tree);

/// Whether a tree is a recipe of NeMo 2 (nemo.collections.llm.api.pretrain) or a YAML file of NeMo 1
/// (trainer, exp_manager, model).
[[nodiscard]] bool is_nemo(const Value& tree);

/// The same settings as sections of Megatron-Bridge, each value with its place.
///
/// Throws:  RecipeError with the place
[[nodiscard]] Value bridge_of_nemo(const Value& tree);

} // namespace mh
