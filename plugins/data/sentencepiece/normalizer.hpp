#pragma once
/// The normal form that SentencePiece makes of a text before it cuts it into pieces.

#include "core/text/charsmap.hpp"
#include "core/text/token_map.hpp"
#include "model_file.hpp"

#include <string>
#include <string_view>

namespace mh::sentencepiece {

inline constexpr std::string_view kSpace = "\u2581";

/// Replacements, fewer blanks, a blank before the text, U+2581 for blanks: what of these the file
/// asks for. A byte that is no UTF-8 becomes U+FFFD.
///
/// Source:  github.com/google/sentencepiece, src/normalizer.cc
class Normalizer {
public:
  Normalizer() = default;

  /// Throws:  mh::Error (exit code 5) as `text::Charsmap`
  Normalizer(const ModelFile& model, const std::string& file);

  /// User-defined pieces are not changed.
  [[nodiscard]] std::string operator()(std::string_view text) const;

private:
  /// The replacement of the beginning of a text, and its length.
  struct Step {
    std::string_view becomes;
    size_t length;
  };

  [[nodiscard]] Step step(std::string_view text) const;

  text::Charsmap charsmap_;
  text::TokenTrie kept_;
  std::string_view space_ = kSpace;
  bool dummy_prefix_ = true, remove_spaces_ = true, space_as_suffix_ = false;
};

} // namespace mh::sentencepiece
