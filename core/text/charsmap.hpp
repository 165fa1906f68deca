#pragma once
/// SentencePiece's table of replacements ("precompiled_charsmap"): which strings become which
/// others before a text is cut into pieces.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mh::text {

/// A double-array trie and the strings that its leaves point at.
///
/// Source:  github.com/google/sentencepiece, src/normalizer.h; the trie of
///          github.com/s-yata/darts-clone
class Charsmap {
public:
  /// `blob` as files hold it; an empty one changes nothing.
  ///
  /// Throws:  mh::Error (exit code 5) "WHERE: ..." for sizes that do not fit
  Charsmap(std::string_view blob, const std::string& where);

  Charsmap() = default;

  [[nodiscard]] bool empty() const { return units_.empty(); }

  struct Match {
    size_t length;            ///< bytes of the text that are replaced
    std::string_view becomes; ///< any bytes: files are not trusted
  };

  /// The entry that `text` begins with: sentencepiece takes the longest, `tokenizers` the shortest.
  [[nodiscard]] std::optional<Match> longest(std::string_view text) const;
  [[nodiscard]] std::optional<Match> shortest(std::string_view text) const;

private:
  template <class Take>
  void for_each_prefix(std::string_view text, Take take) const;
  [[nodiscard]] Match match(size_t length, uint32_t place) const;

  std::vector<uint32_t> units_;
  std::string strings_;
};

} // namespace mh::text
