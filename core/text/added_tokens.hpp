#pragma once
/// Tokens that are looked for in a text before anything else: "<|endoftext|>", "[MASK]".

#include "core/text/token_map.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace mh::text {

struct AddedToken {
  std::string content;
  int32_t id = kNoId;
  bool single_word = false; ///< not where it is part of a word
  bool lstrip = false;      ///< white space before it belongs to it
  bool rstrip = false;      ///< white space behind it, too
};

/// The leftmost is taken, of several there the longest.
class AddedTokens {
public:
  /// The content is not empty; of two with the same content the later counts.
  void add(AddedToken token);

  [[nodiscard]] bool empty() const { return tokens_.empty(); }

  /// Calls `take(part, id)` for what stands between the tokens (kNoId), and for the tokens. `text`
  /// may be any bytes.
  template <class Take>
  void split(std::string_view text, Take take) const {
    size_t begin = 0;
    for (size_t at = 0; !empty() && at < text.size();) {
      const auto [length, index] =
          trie_.begins(text[at]) ? trie_.longest_prefix(text.substr(at)) : std::pair(size_t{0}, 0);
      if (length == 0) {
        ++at;
        continue;
      }
      const AddedToken& token = tokens_[static_cast<size_t>(index)];
      const size_t end = at + length;
      if (token.single_word && in_word(text, at, end)) {
        at = end;
        continue;
      }
      const size_t from = token.lstrip ? spaces_before(text, begin, at) : at;
      const size_t to = token.rstrip ? spaces_behind(text, end) : end;
      if (from > begin) {
        take(text.substr(begin, from - begin), kNoId);
      }
      take(text.substr(from, to - from), token.id);
      begin = to;
      at = end; // the next token may begin in the white space that this one takes
    }
    if (begin < text.size()) {
      take(text.substr(begin), kNoId);
    }
  }

private:
  [[nodiscard]] static bool in_word(std::string_view text, size_t begin, size_t end);
  [[nodiscard]] static size_t spaces_before(std::string_view text, size_t least, size_t end);
  [[nodiscard]] static size_t spaces_behind(std::string_view text, size_t begin);

  std::vector<AddedToken> tokens_;
  TokenTrie trie_;
};

} // namespace mh::text
