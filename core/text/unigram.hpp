#pragma once
/// The unigram language model: of all ways to cut a word into pieces the one of highest score.

#include "core/text/token_map.hpp"
#include "core/text/word_model.hpp"

#include <optional>

namespace mh::text {

/// Scores are added up as floats, and where two ways are all but equal the rounding decides.
enum class UnigramRule : uint8_t {
  sentencepiece, ///< sentencepiece 0.2.3: sums are in float32, and near 0 in long texts
  tokenizers,    ///< tokenizers 0.23: sums are in float64
};

/// A unigram model may lack a piece for a character; such characters get the score `unknown_score`,
/// and a run of them is one `unknown`, or the tokens of its bytes.
///
/// Source:  arXiv:1804.10959; Viterbi's algorithm
class UnigramModel final : public WordModel {
public:
  UnigramRule rule = UnigramRule::sentencepiece;
  TokenTrie pieces;           ///< pieces that texts are cut into
  std::vector<double> scores; ///< score of each id
  double unknown_score = 0;   ///< the lowest of all scores, less 10
  int32_t unknown = kNoId;    ///< kNoId: unknown characters are refused
  bool fuse_unknown = true;
  std::optional<ByteTokens> byte_tokens;

  void encode(std::string_view word, std::vector<int32_t>& ret_ids) const override;
};

} // namespace mh::text
