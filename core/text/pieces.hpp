#pragma once
/// Tokens of a text that is too long to be tokenised at once.

#include "megahost/tokenizer.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace mh::text {

/// The place for a cut, both sides of which no tokenizer joins: behind the last line end that
/// stands between a character and a letter, of any script; without one, before a digit or a mark
/// other than `/`. `npos` if there is no such place.
[[nodiscard]] size_t end_of_piece(std::string_view text);

/// The place for a cut in a text that is tokenised by sentences: behind the last blank line.
[[nodiscard]] size_t end_of_paragraph(std::string_view text);

/// The tokens of a piece that `end_of_piece` cut; those of all pieces are the whole text's. A piece is
/// encoded with a line before it and one behind it, whose tokens are known and left out: a tokenizer
/// that puts a blank, or an id, before a text does so once.
///
/// begins, ends:  whether the text does, with this piece
[[nodiscard]] std::vector<int32_t>
encode_piece(const Tokenizer& tokenizer, std::string_view piece, bool begins, bool ends);

} // namespace mh::text
