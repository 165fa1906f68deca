#pragma once
/// The alphabet in which byte-level vocabularies write bytes: printable Latin-1 stands for itself,
/// the other bytes, in order, for U+0100, U+0101, ...
///
/// Source:  github.com/openai/gpt-2, src/encoder.py

#include <string>
#include <string_view>

namespace mh::text {

/// The bytes that a token of the alphabet stands for; a token with other characters as it is.
[[nodiscard]] std::string token_bytes(std::string_view token);

/// Whether all characters are of the alphabet.
[[nodiscard]] bool is_byte_token(std::string_view token);

/// Bytes as letters.
[[nodiscard]] std::string byte_letters(std::string_view bytes);

} // namespace mh::text
