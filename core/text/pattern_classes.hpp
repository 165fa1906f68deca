#pragma once
/// Classes of characters in regular expressions, by the tables of Unicode 16.

#include <cstdint>
#include <string>
#include <string_view>

namespace mh::text {

/// The program whose regular expressions they are, as programs differ: `$` and `^` stand for lines
/// in Oniguruma (Hugging Face's tokenizers), for the whole text in Rust's (tiktoken).
enum class Dialect : uint8_t { oniguruma, rust };

/// The expression with `\p{..}`, `\s`, `\d`, `\w`, their opposites, `\b`, classes within classes and
/// intersections (`[\p{L}&&[^\p{Han}]]`) as ranges of code points, and what PCRE2 takes for something
/// else in its terms: `{,n}`, and Oniguruma's `(?m)`, with which a `.` is any character.
///
/// Throws:  mh::Error (exit code 5) "WHERE: ..." for a class or an escape of which there is no table
[[nodiscard]] std::string
with_ranges(std::string_view expression, Dialect dialect, const std::string& where);

/// Throws:  mh::Error (exit code 5) "WHERE: WHY", always
[[noreturn]] void refuse_pattern(const std::string& where, const std::string& why);

} // namespace mh::text
