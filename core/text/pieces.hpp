#pragma once
/// Tokens of a text that is too long to be tokenised at once.

#include "megahost/tokenizer.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mh::text {

/// The place for a cut, both sides of which no tokenizer joins: behind the last line end that
/// stands between a character and a letter, of any script; without one, before a digit or a mark
/// other than `/`. `npos` if there is no such place.
[[nodiscard]] size_t end_of_piece(std::string_view text);

/// The place for a cut in a text that is tokenised by sentences: behind the last blank line.
[[nodiscard]] size_t end_of_paragraph(std::string_view text);

/// Tokenises parts of a text, each as what it is there: a tokenizer that puts a blank, or an id, before
/// a text does not so before each of its parts.
///
/// A part is encoded together with some text before it and some behind it, whose tokens are known and
/// left out. Where the tokenizer joins them with the part's own, the part is encoded alone.
class PartEncoder {
public:
  /// end:  what all parts end with
  PartEncoder(
      const Tokenizer& tokenizer, std::string before, const std::string& end, std::string behind
  );

  [[nodiscard]] std::vector<int32_t> encode(std::string_view part) const;

private:
  const Tokenizer& tokenizer_;
  std::string before_, behind_;
  std::vector<int32_t> head_, tail_; // their tokens
};

/// The tokens of a piece that `end_of_piece` cut; those of all pieces are the whole text's.
///
/// begins, ends:  whether the text does, with this piece
[[nodiscard]] std::vector<int32_t>
encode_piece(const Tokenizer& tokenizer, std::string_view piece, bool begins, bool ends);

} // namespace mh::text
