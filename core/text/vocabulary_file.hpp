#pragma once
/// Files of vocabularies, and the ids and words that they lack.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mh::text {

/// The whole of a file that a recipe names.
///
/// Throws:  mh::Error (exit code 5) naming the key of the recipe and the file, if it cannot be read
///          or has more than 256 MiB
[[nodiscard]] std::string read_vocabulary_file(const std::string& key, const std::string& path);

/// The error of `decode` for an id that has no token.
///
/// Throws:  mh::Error (exit code 5)
[[noreturn]] void refuse_id(int32_t id, size_t vocabulary);

/// The error of `encode` for a word, or a part of one, without a token where the vocabulary lacks
/// `unknown`, the token that would stand for it; empty: it names none.
///
/// Throws:  mh::Error (exit code 5)
[[noreturn]] void refuse_word(std::string_view word, const std::string& unknown);

} // namespace mh::text
