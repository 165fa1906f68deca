#pragma once
/// The settings of a training with transformers' Trainer.

#include "core/import/import.hpp"
#include "megahost/value.hpp"

namespace mh {

/// TrainingArguments in the form of their to_json_string(), or of the YAML of a training script, as
/// sections of a recipe without model, data and tokenizer.
///
/// Throws:  RecipeError with the place: values of another type, an optimizer or a schedule that has no
///          equivalent
/// Source:  transformers 5.23.0, training_args.py
[[nodiscard]] ImportedRecipe import_training_arguments(const Value& tree);

} // namespace mh
