#pragma once
/// The arguments of Megatron-LM's pretrain_gpt.py, and what they are in a recipe.

#include <cstdint>
#include <span>
#include <string_view>

namespace mh {

/// How an argument becomes a value.
enum class Becomes : uint8_t {
  number,   ///< the number, as it is
  text,     ///< the word, as it is
  on,       ///< true where it is given
  off,      ///< false where it is given
  word,     ///< one of `words`: "p2p=ring a2a=all_to_all"
  settings, ///< read together with others, by code
  same,     ///< nothing: it is always so here
  nothing,  ///< a comment: there is no equivalent
  changes   ///< the same, and the numbers of the training will be others
};

/// How many words follow it.
enum class Takes : uint8_t { none, one, many };

struct MegatronArgument {
  std::string_view name; ///< without its dashes
  Takes takes;
  Becomes becomes;
  std::string_view key{};   ///< "optimizer.lr"
  std::string_view words{}; ///< translations for `word`: "adam=adamw sgd=sgd"
  std::string_view note{};  ///< why there is no equivalent, or what stands in its place
};

/// Every argument that is known.
[[nodiscard]] std::span<const MegatronArgument> megatron_arguments();

/// Arguments that are nothing in a recipe, for one reason.
struct MegatronArguments {
  Becomes becomes; ///< nothing or changes
  std::string_view reason;
  std::string_view names; ///< with blanks between them; a * stands for any text
};

[[nodiscard]] std::span<const MegatronArguments> megatron_arguments_without();

/// The first of them that has this name; null if there is none.
[[nodiscard]] const MegatronArguments* without_equivalent(std::string_view name);

/// Values that Megatron-LM takes where an argument is not given, and megahost takes others.
struct MegatronDefault {
  std::string_view key, value;
};

[[nodiscard]] std::span<const MegatronDefault> megatron_defaults();

/// Arguments that cannot both be given.
struct MegatronConflict {
  std::string_view one, other, why;
};

[[nodiscard]] std::span<const MegatronConflict> megatron_conflicts();

} // namespace mh
