#pragma once
/// Hidden tokens of a text, as a model guesses them that reads in both directions (BERT).

#include "core/session/session.hpp"
#include "megahost/tokenizer.hpp"

#include <cstdint>
#include <string_view>
#include <vector>

namespace mh {

/// The word for a hidden token in a text.
inline constexpr std::string_view kMaskWord = "[MASK]";

/// Throws:  mh::Error (exit code 5) for a model that reads other sequences, too: what asks it
void require_fills_masks(const Architecture& architecture);

struct MaskedText {
  std::vector<int32_t> ids;   ///< with those of the beginning and the end that the tokenizer has
  std::vector<size_t> hidden; ///< places in `ids`, in order
  size_t first = 0, last = 0; ///< the text's own part of `ids`: [first, last)
};

/// Tokens of a text between [CLS] and [SEP], where the tokenizer has them. `[MASK]`, or the
/// tokenizer's own word for it, hides a token.
///
/// Throws:  mh::Error if nothing is hidden, or the tokenizer has no id for what is
[[nodiscard]] MaskedText masked_text(std::string_view text, const Tokenizer& tokenizer);

struct Guess {
  int32_t id = 0;
  double share = 0; ///< probability
};

/// For each hidden token the `most` likeliest, the likeliest first. All are guessed at once.
///
/// Throws:  mh::Error, see token_scores
[[nodiscard]] std::vector<std::vector<Guess>>
fill_mask(const Session& session, const MaskedText& text, int64_t most);

} // namespace mh
