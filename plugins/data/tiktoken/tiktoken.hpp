#pragma once
/// Tokenizers by rank: Llama 3 and 4, Qwen, OpenAI's, Mistral's tekken.

#include "core/text/byte_level.hpp"

#include <megahost/schema.hpp>
#include <megahost/tokenizer.hpp>

#include <string>
#include <unordered_map>

namespace mh::tiktoken {

/// The ids of tiktoken. Any bytes are encoded, and come back unchanged. Special tokens lie behind
/// the ranks, and where they stand in a text become their ids; those of a tekken.json come first,
/// and texts do not make them.
///
/// Thread:  any
class TiktokenTokenizer final : public Tokenizer {
public:
  struct Config {
    std::string path;
    std::string pattern;
    std::vector<std::string> special_tokens;
    std::string bos, eos, pad;
  };

  static void fields(Fields<Config>& fields);

  /// Throws:  mh::Error (exit code 5) for a file that cannot be read or is damaged, see
  ///          `read_ranks`; a pattern that is missing or wrong; a special token twice, or that is
  ///          none
  TiktokenTokenizer(const Config& config, const Args& args);

  [[nodiscard]] int64_t vocab() const override { return static_cast<int64_t>(tokens_.size()); }

  [[nodiscard]] std::vector<int32_t> encode(std::string_view text) const override {
    return text_.encode(text);
  }

  /// Throws:  mh::Error (exit code 5) for ids without a token
  [[nodiscard]] std::string decode(std::span<const int32_t> ids) const override;

  [[nodiscard]] std::optional<int32_t> end_of_document() const override { return special_.eos; }

  [[nodiscard]] SpecialIds special_ids() const override { return special_; }

private:
  std::vector<std::string> tokens_; // bytes of each id
  text::ByteLevel text_;
  SpecialIds special_;
};

} // namespace mh::tiktoken
