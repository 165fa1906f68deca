#pragma once
/// How texts are cut into the words within which tokens are merged.
///
/// Splitters of the usual patterns are written by hand: tables of Unicode 16 and one pass, where
/// PCRE2 would cost more than all the rest. `PatternSplitter` (pattern.hpp) is for others; both cut
/// alike, and tests compare them.

#include "core/text/unicode.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

namespace mh::text {

class Splitter {
public:
  virtual ~Splitter() = default;

  /// The ends of the next words of `text` from `begin`, where a word begins. Together the words are
  /// the text. Fewer than there is room for only at the end of the text.
  ///
  /// Returns: how many there are
  [[nodiscard]] virtual size_t
  ends(std::string_view text, size_t begin, std::span<size_t> ret_ends) const = 0;
};

/// The splitter written by hand for a pattern; null if there is none. A text that the pattern does
/// not match is a word, too.
[[nodiscard]] std::unique_ptr<Splitter> known_splitter(std::string_view pattern);

/// The pattern of a model: gpt2, cl100k, o200k, llama3, qwen2, qwen3_5; empty for other names.
[[nodiscard]] std::string_view named_pattern(std::string_view name);

/// The splitter of GPT-2: contractions such as 's, letters, numbers or other characters with a
/// blank before them, white space.
[[nodiscard]] std::unique_ptr<Splitter> gpt2_splitter();

/// DeepSeek's three patterns, one after the other.
[[nodiscard]] std::unique_ptr<Splitter> deepseek_splitter();

} // namespace mh::text
