#pragma once
/// Byte-pair encoding by score, as SentencePiece has it: neighbours that together are a piece
/// become it, the piece of highest score first, of equal ones the leftmost.

#include "core/text/token_map.hpp"
#include "core/text/word_model.hpp"

#include <optional>

namespace mh::text {

/// A run of characters without a piece is one `unknown`, or the tokens of its bytes.
///
/// Source:  github.com/google/sentencepiece, src/bpe_model.cc
class ScoredPairModel final : public WordModel {
public:
  TokenMap pieces;
  std::vector<float> scores; ///< score of each id
  std::vector<bool> unused;  ///< pieces that are cut again into what they were merged from
  TokenTrie whole;           ///< user-defined pieces, which are cut out first and never merged
  int32_t unknown = kNoId;
  std::optional<ByteTokens> byte_tokens;

  void encode(std::string_view word, std::vector<int32_t>& ret_ids) const override;
};

} // namespace mh::text
