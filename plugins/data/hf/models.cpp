#include "models.hpp"

#include "component.hpp"
#include "core/text/byte_alphabet.hpp"
#include "core/text/byte_pairs.hpp"
#include "core/text/unigram.hpp"
#include "core/text/vocabulary_file.hpp"
#include "core/text/word_pieces.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>

namespace mh::hf {
namespace {

constexpr int64_t kMostIds = 1 << 24;
constexpr double kUnknownPenalty = 10;

std::string text_member(const nlohmann::json& model, const char* key, const std::string& where) {
  return optional_member(model, key) == nullptr ? "" : json_string(model, key, where);
}

int32_t find(const TokenIds& ids, const std::string& token) {
  const auto found = ids.find(token);
  return found == ids.end() ? text::kNoId : found->second;
}

std::optional<int32_t>
unknown_of(const nlohmann::json& model, const TokenIds& ids, const std::string& where) {
  const std::string token = text_member(model, "unk_token", where);
  const int32_t id = token.empty() ? text::kNoId : find(ids, token);
  return id == text::kNoId ? std::nullopt : std::optional(id);
}

TokenIds read_ids(const nlohmann::json& model, const std::string& where) {
  const nlohmann::json& vocab = json_member(model, "vocab", where);
  if (!vocab.is_object()) {
    refuse(where, "`vocab` is no object of tokens and ids");
  }
  TokenIds ids;
  std::vector<bool> given;
  for (const auto& [token, value] : vocab.items()) {
    const int32_t id = id_of(value, where + ".vocab");
    given.resize(std::max(given.size(), static_cast<size_t>(id) + 1));
    if (given[static_cast<size_t>(id)]) {
      refuse(where, "the id " + std::to_string(id) + " is given twice");
    }
    given[static_cast<size_t>(id)] = true;
    ids.emplace(token, id);
  }
  return ids;
}

text::TokenMap map_of(const TokenIds& ids) {
  text::TokenMap map;
  map.reserve(ids.size());
  for (const auto& [token, id] : ids) {
    (void)map.add(token, id);
  }
  return map;
}

std::optional<text::ByteTokens>
byte_tokens(const nlohmann::json& model, const TokenIds& ids, const std::string& where) {
  if (!flag(model, "byte_fallback", false, where)) {
    return std::nullopt;
  }
  text::ByteTokens tokens{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::array<char, 8> name{};
    (void)std::snprintf(name.data(), name.size(), "<0x%02X>", byte);
    tokens[byte] = find(ids, name.data());
  }
  return tokens;
}

std::pair<std::string, std::string> pair_of(const nlohmann::json& merge, const std::string& where) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  if (!merge.is_string()) {
    refuse(where, "no pair of tokens");
  }
  const std::string& pair = merge.get_ref<const std::string&>();
  const size_t space = pair.find(' ');
  if (space == std::string::npos || pair.find(' ', space + 1) != std::string::npos) {
    refuse(where, "no pair of tokens with a blank between them");
  }
  return {pair.substr(0, space), pair.substr(space + 1)};
}

/// `prefix` is that of a token within a word; the whole has that of its left part only.
text::PairMap read_merges(
    const nlohmann::json& model,
    const TokenIds& ids,
    const std::string& prefix,
    const std::string& where
) {
  const nlohmann::json& list = list_of(model, "merges", where);
  text::PairMap merges;
  merges.reserve(list.size());
  int32_t rank = 0;
  for (const nlohmann::json& merge : list) {
    const std::string at = where + ".merges[" + std::to_string(rank) + "]";
    const auto [left, right] = pair_of(merge, at);
    const auto token = [&](const std::string& written) {
      const int32_t id = find(ids, written);
      if (id == text::kNoId) {
        refuse(at, "needs the token " + string_text(written) + ", which the vocabulary lacks");
      }
      return id;
    };
    const std::string rest = right.size() < prefix.size() ? "" : right.substr(prefix.size());
    merges(token(left), token(right)) = {rank++, token(left + rest)};
  }
  return merges;
}

/// Whether a byte is in no UTF-8 text: MPT's vocabulary has no token for these.
bool is_never_in_utf8(size_t byte) {
  return byte == 0xC0 || byte == 0xC1 || byte >= 0xF5;
}

/// Pairs of bytes; null if a byte has no token that texts have.
std::unique_ptr<text::BytePairModel> byte_pairs(const TokenIds& ids, int& ret_missing) {
  auto pairs = std::make_unique<text::BytePairModel>();
  pairs->bytes.fill(text::kNoId);
  for (const auto& [token, id] : ids) {
    if (text::is_byte_token(token) && !token.empty()) {
      const std::string bytes = text::token_bytes(token);
      (void)pairs->tokens.add(bytes, id);
      if (bytes.size() == 1) {
        pairs->bytes[static_cast<unsigned char>(bytes[0])] = id;
      }
    }
  }
  for (size_t byte = 0; byte < pairs->bytes.size(); ++byte) {
    if (pairs->bytes[byte] == text::kNoId && is_never_in_utf8(byte)) {
      pairs->bytes[byte] = pairs->bytes['?']; // in texts that are no UTF-8
    }
  }
  const auto missing = std::ranges::find(pairs->bytes, text::kNoId);
  ret_missing = static_cast<int>(missing - pairs->bytes.begin());
  return missing == pairs->bytes.end() ? std::move(pairs) : nullptr;
}

void read_pairs(
    const nlohmann::json& model, const std::string& where, bool byte_words, TokenModel& ret_model
) {
  const nlohmann::json* dropout = optional_member(model, "dropout");
  if (dropout != nullptr && *dropout != 0.0) {
    unknown(where, "BPE with dropout");
  }
  ret_model.ids = read_ids(model, where);
  ret_model.unknown = unknown_of(model, ret_model.ids, where);
  const bool whole_words = flag(model, "ignore_merges", false, where);
  const std::string prefix = text_member(model, "continuing_subword_prefix", where);
  const std::string suffix = text_member(model, "end_of_word_suffix", where);
  int missing = 0;
  auto bytes =
      byte_words && prefix.empty() && suffix.empty() ? byte_pairs(ret_model.ids, missing) : nullptr;
  if (bytes == nullptr && byte_words && !ret_model.unknown && prefix.empty() && suffix.empty()) {
    refuse(
        where,
        "there is no token for the byte " + std::to_string(missing) +
            ", and no unknown token that would stand for it"
    );
  }
  text::PairMap merges = read_merges(model, ret_model.ids, prefix, where);
  if (bytes != nullptr) {
    bytes->merges = std::move(merges);
    bytes->whole_words = whole_words;
    ret_model.words = std::move(bytes);
    ret_model.bytes = true;
    return;
  }
  auto pairs = std::make_unique<text::CharacterPairModel>();
  pairs->tokens = map_of(ret_model.ids);
  pairs->merges = std::move(merges);
  pairs->unknown = ret_model.unknown;
  pairs->unknown_token = text_member(model, "unk_token", where);
  pairs->fuse_unknown = flag(model, "fuse_unk", false, where);
  pairs->byte_tokens = byte_tokens(model, ret_model.ids, where);
  pairs->prefix = prefix;
  pairs->suffix = suffix;
  pairs->whole_words = whole_words;
  ret_model.words = std::move(pairs);
}

/// A number as `tokenizers` reads it: digits times a power of ten, where both are rounded. (Its JSON
/// reader is serde_json without `float_roundtrip`.) Which of two ways through a word is better may
/// depend on it.
double rounded_twice(double number) {
  std::array<char, 32> text{};
  std::to_chars(text.begin(), text.end(), std::abs(number), std::chars_format::scientific);
  const std::string_view shortest = text.data(); // "5.25e+00"
  const size_t e = shortest.find('e');
  uint64_t digits = 0;
  int exponent = 0;
  for (const char c : shortest.substr(0, e)) {
    digits = c == '.' ? digits : digits * 10 + static_cast<uint64_t>(c - '0');
  }
  const size_t sign = e + (shortest[e + 1] == '+' ? 2 : 1);
  std::from_chars(shortest.data() + sign, shortest.data() + shortest.size(), exponent);
  exponent -= e > 1 ? static_cast<int>(e) - 2 : 0; // digits behind the point
  double value = static_cast<double>(digits);
  for (constexpr int kMost = 308; exponent < -kMost; exponent += kMost) {
    value /= 1e308;
  }
  const std::string power = "1e" + std::to_string(std::abs(exponent));
  double factor = 1;
  std::from_chars(power.data(), power.data() + power.size(), factor);
  return std::copysign(exponent < 0 ? value / factor : value * factor, number);
}

void read_unigram(const nlohmann::json& model, const std::string& where, TokenModel& ret_model) {
  auto unigram = std::make_unique<text::UnigramModel>();
  unigram->rule = text::UnigramRule::tokenizers;
  double least = std::numeric_limits<double>::max();
  for (const nlohmann::json& piece : list_of(model, "vocab", where)) {
    const auto id = static_cast<int32_t>(unigram->scores.size());
    const std::string at = where + ".vocab[" + std::to_string(id) + "]";
    if (!piece.is_array() || piece.size() != 2 || !piece[0].is_string() || !piece[1].is_number()) {
      refuse(at, "no piece and its score");
    }
    const auto text = piece[0].get<std::string>();
    const auto given = piece[1].get<double>();
    const double score = piece[1].is_number_float() ? rounded_twice(given) : given;
    if (text.empty() || !ret_model.ids.emplace(text, id).second) {
      refuse(at, "the piece " + string_text(text) + " is empty or given twice");
    }
    unigram->pieces.add(text, id);
    unigram->scores.push_back(score);
    least = std::min(least, score);
  }
  unigram->unknown_score = least - kUnknownPenalty;
  if (const nlohmann::json* id = optional_member(model, "unk_id")) {
    unigram->unknown = id_of(*id, where + ".unk_id");
    if (static_cast<size_t>(unigram->unknown) >= unigram->scores.size()) {
      refuse(where, "`unk_id` is no piece");
    }
    ret_model.unknown = unigram->unknown;
  }
  unigram->byte_tokens = byte_tokens(model, ret_model.ids, where);
  ret_model.words = std::move(unigram);
}

void read_word_pieces(
    const nlohmann::json& model, const std::string& where, TokenModel& ret_model
) {
  ret_model.ids = read_ids(model, where);
  ret_model.unknown = unknown_of(model, ret_model.ids, where);
  auto pieces = std::make_unique<text::WordPieceModel>();
  pieces->pieces = map_of(ret_model.ids);
  pieces->prefix = text_member(model, "continuing_subword_prefix", where);
  pieces->unknown = ret_model.unknown.value_or(text::kNoId);
  pieces->unknown_token = text_member(model, "unk_token", where);
  if (optional_member(model, "max_input_chars_per_word") != nullptr) {
    pieces->longest_word = static_cast<size_t>(json_size(model, "max_input_chars_per_word", where));
  }
  ret_model.words = std::move(pieces);
}

/// A word is a token.
class WholeWordModel final : public text::WordModel {
public:
  WholeWordModel(text::TokenMap tokens, std::optional<int32_t> unknown, std::string unknown_token)
      : tokens_(std::move(tokens))
      , unknown_(unknown.value_or(text::kNoId))
      , unknown_token_(std::move(unknown_token)) {}

  void encode(std::string_view word, std::vector<int32_t>& ret_ids) const override {
    const int32_t id = tokens_.find(word);
    if (id == text::kNoId && unknown_ == text::kNoId) {
      text::refuse_word(word, unknown_token_);
    }
    ret_ids.push_back(id != text::kNoId ? id : unknown_);
  }

private:
  text::TokenMap tokens_;
  int32_t unknown_;
  std::string unknown_token_; // for the error
};

} // namespace

int32_t id_of(const nlohmann::json& value, const std::string& where) {
  if (!is_json_size(value) || value.get<int64_t>() >= kMostIds) {
    refuse(where, "an id that is no whole number from 0 to " + std::to_string(kMostIds - 1));
  }
  return value.get<int32_t>();
}

TokenModel read_model(const nlohmann::json& model, const std::string& where, bool byte_words) {
  const bool named = model.is_object() && optional_member(model, "type") != nullptr;
  const std::string type = named ? json_string(model, "type", where) : "BPE";
  TokenModel result;
  if (type == "BPE") {
    read_pairs(model, where, byte_words, result);
  } else if (type == "Unigram") {
    read_unigram(model, where, result);
  } else if (type == "WordPiece") {
    read_word_pieces(model, where, result);
  } else if (type == "WordLevel") {
    result.ids = read_ids(model, where);
    result.unknown = unknown_of(model, result.ids, where);
    result.words = std::make_unique<WholeWordModel>(
        map_of(result.ids), result.unknown, text_member(model, "unk_token", where)
    );
  } else {
    unknown(where, "the component " + string_text(type));
  }
  return result;
}

} // namespace mh::hf
