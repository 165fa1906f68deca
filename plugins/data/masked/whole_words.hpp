#pragma once
/// The tokens that continue a word that the token before them began.

#include <megahost/tokenizer.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mh::masked {

/// By the words of the vocabulary: "##" goes on (WordPiece), a blank begins (SentencePiece, byte
/// level pairs), and among single bytes letters and digits go on.
class WholeWords {
public:
  /// With `each_token` every token is a word.
  WholeWords(const Tokenizer& tokenizer, int64_t vocab, bool each_token);

  /// The tokens that begin a word.
  [[nodiscard]] std::vector<size_t> begins(std::span<const int64_t> ids) const;

private:
  enum class Role : uint8_t { begins, continues, letter };

  [[nodiscard]] Role role(int64_t id) const {
    return static_cast<size_t>(id) < roles_.size() ? roles_[static_cast<size_t>(id)] : Role::begins;
  }

  std::vector<Role> roles_;
};

} // namespace mh::masked
