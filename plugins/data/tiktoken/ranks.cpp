#include "ranks.hpp"

#include "core/formats/json.hpp"
#include "core/text/base64.hpp"

#include <megahost/error.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <unordered_set>

namespace mh::tiktoken {
namespace {

constexpr int64_t kMostRanks = 1 << 24;

[[noreturn]] void refuse(const std::string& file, const std::string& why) {
  throw Error(
      file + ": " + why,
      "the file is damaged, cut short, or no vocabulary by rank: get it anew",
      exit_code::data
  );
}

/// Tokens by rank as they come, in any order.
class Collector {
public:
  explicit Collector(const std::string& file)
      : file_(file) {}

  void add(std::string token, int64_t rank, const std::string& where) {
    if (rank < 0 || rank >= kMostRanks) {
      refuse(
          file_,
          where + " has the rank " + std::to_string(rank) + ", expected 0 to " +
              std::to_string(kMostRanks - 1)
      );
    }
    if (token.empty()) {
      refuse(file_, where + " has a token without bytes");
    }
    if (!seen_.insert(token).second) {
      refuse(file_, where + " gives a token twice");
    }
    const auto place = static_cast<size_t>(rank);
    if (place >= tokens_.size()) {
      tokens_.resize(place + 1);
    }
    if (!tokens_[place].empty()) {
      refuse(file_, where + " gives the rank " + std::to_string(rank) + " twice");
    }
    tokens_[place] = std::move(token);
  }

  std::vector<std::string> run() {
    const auto missing = std::ranges::find(tokens_, std::string());
    if (missing != tokens_.end()) {
      refuse(file_, "no token has the rank " + std::to_string(missing - tokens_.begin()));
    }
    for (int byte = 0; byte < 256; ++byte) {
      if (!seen_.contains(std::string(1, static_cast<char>(byte)))) {
        refuse(file_, "there is no token for the byte " + std::to_string(byte));
      }
    }
    return std::move(tokens_);
  }

private:
  const std::string& file_;
  std::vector<std::string> tokens_;
  std::unordered_set<std::string> seen_;
};

TokenRanks read_lines(std::string_view text, const std::string& file) {
  Collector collector(file);
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    if (line.empty()) {
      continue;
    }
    const std::string where = "line " + std::to_string(number);
    const size_t space = line.find(' ');
    std::string token;
    if (space == std::string_view::npos || !text::from_base64(line.substr(0, space), token)) {
      refuse(file, where + " is no token in base64 and its rank");
    }
    const std::string_view digits = line.substr(space + 1);
    int64_t rank = -1;
    const auto [stop, failure] = std::from_chars(digits.begin(), digits.end(), rank);
    if (failure != std::errc() || stop != digits.end()) {
      refuse(file, where + " has no rank");
    }
    collector.add(std::move(token), rank, where);
  }
  return {collector.run(), "", {}};
}

TokenRanks read_tekken(std::string_view text, const std::string& file) {
  const nlohmann::json json = parse_json(text, file);
  const nlohmann::json& config = json_member(json, "config", file);
  const std::string in_config = file + ": config";
  const int64_t special = json_size(config, "default_num_special_tokens", in_config);
  const int64_t size = json_size(config, "default_vocab_size", in_config);
  const nlohmann::json& vocab = json_member(json, "vocab", file);
  if (special > size || size > kMostRanks || !vocab.is_array() ||
      vocab.size() < static_cast<size_t>(size - special)) {
    refuse(file, "`vocab` is no list of the ranks that `config` counts");
  }
  TokenRanks ranks;
  Collector collector(file);
  for (size_t i = 0; i < static_cast<size_t>(size - special); ++i) {
    const std::string where = "vocab[" + std::to_string(i) + "]";
    std::string token;
    if (!text::from_base64(json_string(vocab[i], "token_bytes", file + ": " + where), token)) {
      refuse(file, where + " has no bytes in base64");
    }
    collector.add(std::move(token), json_size(vocab[i], "rank", file + ": " + where), where);
  }
  ranks.tokens = collector.run();
  ranks.pattern = json_string(config, "pattern", in_config);
  ranks.special.resize(static_cast<size_t>(special));
  for (size_t i = 0; i < ranks.special.size(); ++i) {
    ranks.special[i] =
        i < 3 ? std::array{"<unk>", "<s>", "</s>"}[i] : "<SPECIAL_" + std::to_string(i) + ">";
  }
  if (const auto listed = json.find("special_tokens"); listed != json.end() && listed->is_array()) {
    for (const nlohmann::json& token : *listed) {
      const int64_t rank = json_size(token, "rank", file + ": special_tokens");
      if (rank >= special) {
        refuse(file, "a special token has the rank " + std::to_string(rank));
      }
      ranks.special[static_cast<size_t>(rank)] =
          json_string(token, "token_str", file + ": special_tokens");
    }
  }
  return ranks;
}

} // namespace

TokenRanks read_ranks(std::string_view text, const std::string& file) {
  return text.starts_with('{') ? read_tekken(text, file) : read_lines(text, file);
}

} // namespace mh::tiktoken
