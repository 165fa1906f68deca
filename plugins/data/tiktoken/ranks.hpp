#pragma once
/// Vocabularies by rank: tiktoken's lines of base64 and rank, Mistral's tekken.json.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mh::tiktoken {

struct TokenRanks {
  std::vector<std::string> tokens;  ///< bytes of each rank
  std::string pattern;              ///< empty where the file has none
  std::vector<std::string> special; ///< tokens before the ranks, in the order of their ids
};

/// Reads the text of a rank file, or of a tekken.json, which begins with `{`.
///
/// Throws:  mh::Error (exit code 5) naming the file and the line or entry: no base64, no rank; a
///          token or rank given twice; a rank left out; a byte without a token; more than 2^24
///          ranks
[[nodiscard]] TokenRanks read_ranks(std::string_view text, const std::string& file);

} // namespace mh::tiktoken
