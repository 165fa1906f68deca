#pragma once
/// GPT-2's two files: vocab.json, the tokens and their ids, and merges.txt, how tokens grow out of
/// bytes.

#include "core/text/token_map.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace mh::gpt2 {

/// Byte-level tokens and their merges.
struct Vocabulary {
  int64_t size = 0;                 ///< one more than the largest id
  std::vector<std::string> tokens;  ///< bytes of each id
  std::vector<bool> known;          ///< ids may have gaps
  std::array<int32_t, 256> bytes{}; ///< id of each single byte
  text::PairMap merges;
  std::unordered_map<std::string, int32_t> special;
};

/// Reads the texts of both files. `special` are tokens that no merge makes, such as
/// "<|endoftext|>"; those that the vocabulary lacks are left out.
///
/// Throws:  mh::Error (exit code 5) naming the file: no JSON object of tokens to ids; a token or id
///          given twice; an id that is negative or 2^24 and more; a byte without a token; a line
///          that is no pair of tokens; a pair given twice, or whose parts or whole are no tokens; a
///          token that neither merges nor `special` account for, as happens when merges.txt is cut
/// Source:  Radford et al. (2019); the byte alphabet of github.com/openai/gpt-2, src/encoder.py
[[nodiscard]] Vocabulary read_vocabulary(
    std::string_view vocab,
    const std::string& vocab_file,
    std::string_view merges,
    const std::string& merges_file,
    const std::vector<std::string>& special
);

} // namespace mh::gpt2
