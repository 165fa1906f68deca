#pragma once
/// GPT-2's two files: vocab.json, the tokens and their ids, and merges.txt, how tokens grow out of
/// bytes.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace mh::gpt2 {

/// Two neighbours that become one token; those of lower rank first.
struct Merge {
  int32_t rank = 0;
  int32_t id = 0; ///< of the whole
};

/// Byte-level tokens and their merges.
struct Vocabulary {
  static constexpr int32_t kNone = -1;

  int64_t size = 0;                           ///< one more than the largest id
  std::vector<std::string> tokens;            ///< bytes of each id
  std::vector<bool> known;                    ///< ids may have gaps
  std::array<int32_t, 256> bytes{};           ///< id of each single byte
  std::unordered_map<uint64_t, Merge> merges; ///< by `pair`
  std::unordered_map<std::string, int32_t> special;

  [[nodiscard]] static uint64_t pair(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
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

/// The bytes that a token of the byte alphabet stands for; what is not of the alphabet as it is.
[[nodiscard]] std::string token_bytes(std::string_view token);

} // namespace mh::gpt2
