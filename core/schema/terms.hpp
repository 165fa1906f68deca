#pragma once
/// The names of a recipe's keys in other programs: Megatron-LM's arguments, torchtitan's sections,
/// Hugging Face's configurations, nanoGPT's variables.

#include "megahost/conditions.hpp"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// A name of another program. With a dot it is a key in its section: "training.steps".
struct ForeignTerm {
  std::string_view name, key;
};

/// All but the arguments of Megatron-LM that are a key on their own (`megatron_arguments`).
[[nodiscard]] std::span<const ForeignTerm> foreign_terms();

struct Meaning {
  std::string key;  ///< "checkpoint.interval"; empty: a recipe has none
  std::string note; ///< why it has none
};

/// The meaning of a key that no schema knows: a term of another program, or one of our own keys
/// that belongs to another section. `path` is "save_interval", "train.save-interval",
/// "training.steps". Our own keys are those of `known`.
[[nodiscard]] std::optional<Meaning> meaning_of(std::string_view path, const SectionSchemas& known);

/// The one of `words` that a word was meant to be: another program's word for it ("bfloat16"), or
/// the nearest.
[[nodiscard]] std::optional<std::string>
word_meant(std::string_view word, const std::vector<std::string>& words);

} // namespace mh
