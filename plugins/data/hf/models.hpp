#pragma once
/// The section `model` of tokenizer.json: BPE, Unigram, WordLevel and WordPiece.

#include "core/text/word_model.hpp"

#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

namespace mh::hf {

using TokenIds = std::unordered_map<std::string, int32_t>;

/// A number that may be an id: 0 to 2^24 - 1.
[[nodiscard]] int32_t id_of(const nlohmann::json& value, const std::string& where);

struct TokenModel {
  TokenIds ids;                           ///< ids of the tokens as the vocabulary writes them
  std::unique_ptr<text::WordModel> words; ///< how a word becomes ids
  std::optional<int32_t> unknown;
  bool bytes = false; ///< words are bytes, not what ByteLevel writes for them
};

/// `byte_words`: texts come as bytes, if the vocabulary has a token for each of them.
///
/// Throws:  mh::Error (exit code 5) "WHERE: ..." for a model that is not known; a vocabulary or
///          merge that is none; an id given twice; with `byte_words`, a vocabulary that lacks both
///          a byte and an unknown token
[[nodiscard]] TokenModel
read_model(const nlohmann::json& model, const std::string& where, bool byte_words);

} // namespace mh::hf
