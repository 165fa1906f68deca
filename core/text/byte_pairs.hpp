#pragma once
/// Byte-pair encoding: a word's bytes or characters, merged pair by pair.

#include "core/text/token_map.hpp"
#include "core/text/word_model.hpp"

#include <array>
#include <optional>

namespace mh::text {

/// Merges neighbours of `ids` in place: the pair of lowest rank, the leftmost first, until none is
/// left. O(n log n).
///
/// Source:  arXiv:1508.07909, algorithm 1, with ranks
void merge_pairs(const PairMap& merges, std::vector<int32_t>& ids);

/// Adds to `merges` every pair of tokens that together are a token of `ids`, with the id of the
/// whole as the rank: what vocabularies by rank (tiktoken's) leave unsaid.
void add_pairs_by_rank(
    const std::vector<std::string>& tokens, const TokenMap& ids, PairMap& merges
);

/// Words of bytes: every byte has a token.
class BytePairModel final : public WordModel {
public:
  TokenMap tokens; ///< bytes of each token; read where `whole_words` is set
  PairMap merges;
  std::array<int32_t, 256> bytes{}; ///< id of each single byte
  bool whole_words = false;         ///< a word that is a token is not merged

  void encode(std::string_view word, std::vector<int32_t>& ret_ids) const override;
};

/// Words of characters, as Hugging Face's BPE has them.
class CharacterPairModel final : public WordModel {
public:
  TokenMap tokens;
  PairMap merges;
  std::optional<int32_t> unknown;
  std::string unknown_token; ///< not empty: without `unknown`, what has no token is refused
  bool fuse_unknown = false;
  std::optional<ByteTokens> byte_tokens; ///< tokens for the bytes of a character without token
  std::string prefix;                    ///< text before each character but the first
  std::string suffix;                    ///< text behind the last character
  bool whole_words = false;

  void encode(std::string_view word, std::vector<int32_t>& ret_ids) const override;
};

} // namespace mh::text
