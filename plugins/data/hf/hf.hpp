#pragma once
/// Hugging Face's tokenizer.json: Llama, Qwen, DeepSeek, GPT-2, Mistral, Gemma, T5, BERT and
/// others.

#include "core/text/added_tokens.hpp"
#include "decoders.hpp"
#include "models.hpp"
#include "normalizers.hpp"
#include "pre_tokenizers.hpp"

#include <megahost/schema.hpp>
#include <megahost/tokenizer.hpp>

#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <string>

namespace mh::hf {

/// The ids of `tokenizers` 0.23. Any bytes are encoded: with a byte-level vocabulary a run of bytes
/// that are no UTF-8 is a word, else such bytes become U+FFFD. A component that is not known is an
/// error that names it. The sections `truncation` and `padding` are not applied.
///
/// Thread:  any
class HfTokenizer final : public Tokenizer {
public:
  struct Config {
    std::string path;
    bool add_special_tokens = false;
    std::string eod;
  };

  static void fields(Fields<Config>& fields);

  /// Throws:  mh::Error (exit code 5) naming the file and the component: no JSON; a member missing
  ///          or of another type; a component that is not known; a merge whose tokens are not in
  ///          the vocabulary; an id given twice; a byte without a token in a byte-level vocabulary
  HfTokenizer(const Config& config, const Args& args);

  [[nodiscard]] int64_t vocab() const override { return static_cast<int64_t>(tokens_.size()); }

  [[nodiscard]] std::vector<int32_t> encode(std::string_view text) const override;
  /// Throws:  mh::Error (exit code 5) for ids without a token
  [[nodiscard]] std::string decode(std::span<const int32_t> ids) const override;

  [[nodiscard]] std::string token(int32_t id) const override { return token_at(id).written; }

  [[nodiscard]] bool lossy() const override { return lossy_; }

  [[nodiscard]] std::optional<int32_t> end_of_document() const override { return eod_; }

  [[nodiscard]] SpecialIds special_ids() const override { return special_; }

private:
  struct Token {
    std::string written;
    std::string changed; // an added token as the normalizer leaves it
    bool known = false;  // ids may have gaps
  };

  void read_vocabulary(const nlohmann::json& json, const std::string& path);
  void read_steps(const nlohmann::json& json, const std::string& path);
  void read_post_processor(const nlohmann::json& component, const std::string& where);
  void read_added_tokens(const nlohmann::json& list, const std::string& where);
  void read_special_ids(const std::string& path);
  void set_token(int32_t id, const std::string& written, const std::string& where, bool again);
  void append_special(int32_t id, const std::string& where, std::vector<int32_t>& ret_ids) const;
  [[nodiscard]] std::string changed(std::string_view text, bool& ret_begins) const;
  [[nodiscard]] const Token& token_at(int32_t id) const;
  void encode_part(
      std::string_view text, bool first, text::WordEncoder& encoder, std::vector<int32_t>& ret_ids
  ) const;

  std::vector<Token> tokens_;
  TokenIds ids_;
  std::unique_ptr<text::WordModel> model_;
  std::vector<TextNormalizer> normalizers_;
  ByteSplitter bytes_; // instead of pre-tokenizers, where words are bytes
  std::vector<PreTokenizer> pre_tokenizers_;
  std::vector<TokenDecoder> decoders_;
  text::AddedTokens added_;            // looked for in the text itself
  text::AddedTokens normalized_added_; // in the normalized text
  std::vector<int32_t> before_, behind_;
  SpecialIds special_;
  std::optional<int32_t> eod_;
  bool lossy_ = true;
  text::Pool<text::WordEncoder> encoders_;
};

} // namespace mh::hf
