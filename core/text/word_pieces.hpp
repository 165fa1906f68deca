#pragma once
/// BERT's tokenization: texts made plain, words, and the longest pieces of each word.

#include "core/text/token_map.hpp"
#include "core/text/unicode.hpp"
#include "core/text/word_model.hpp"

#include <string>
#include <string_view>

namespace mh::text {

/// Takes the longest piece each time, from the left; a word that is not made of pieces is one
/// `unknown`.
///
/// Source:  arXiv:1609.08144, section 4.1; github.com/google-research/bert, tokenization.py
class WordPieceModel final : public WordModel {
public:
  TokenMap pieces;
  std::string prefix = "##"; ///< beginning of each piece but a word's first
  int32_t unknown = kNoId;   ///< kNoId: such a word is refused
  std::string unknown_token; ///< for the error
  size_t longest_word = 100; ///< characters; longer ones are unknown

  void encode(std::string_view word, std::vector<int32_t>& ret_ids) const override;
};

struct BertRules {
  bool clean = true;         ///< no control, format and private characters; white space is a blank
  bool chinese = true;       ///< blanks round each Chinese character
  bool strip_accents = true; ///< no nonspacing marks, after NFD
  bool lower_case = true;
};

/// `text`, which is valid UTF-8, as BERT's words are made of it.
[[nodiscard]] std::string bert_normalized(std::string_view text, const BertRules& rules);

/// `text` without the characters of some categories.
[[nodiscard]] std::string without(Categories categories, std::string_view text);

/// `text` in lower case, character by character.
[[nodiscard]] std::string lower(std::string_view text);

/// Pieces as a text again, as `tokenizers` puts them together: blanks between words, and with
/// `clean` none before punctuation and within contractions. Token `index` of a text.
[[nodiscard]] std::string
decoded_piece(std::string piece, size_t index, std::string_view prefix, bool clean);

} // namespace mh::text
