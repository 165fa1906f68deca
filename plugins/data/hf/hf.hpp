#pragma once
/// Hugging Face's tokenizer.json, where it is of the byte-level family: Llama 3, Qwen, DeepSeek,
/// GPT-2, GPT-NeoX and others.

#include "core/text/added_tokens.hpp"
#include "core/text/byte_pairs.hpp"
#include "core/text/normal_form.hpp"

#include <megahost/schema.hpp>
#include <megahost/tokenizer.hpp>

#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <string>
#include <unordered_map>

namespace mh::hf {

/// The ids of `tokenizers`. Any bytes are encoded: a run of bytes that are no UTF-8 is a word. A
/// component that is not known is an error that names it.
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

  /// Throws:  mh::Error (exit code 5) naming the file and the component: no JSON; a member missing or
  ///          of another type; a component that is not known; a merge whose tokens are not in the
  ///          vocabulary; an id given twice; a byte without a token
  HfTokenizer(const Config& config, const Args& args);

  [[nodiscard]] int64_t vocab() const override { return static_cast<int64_t>(tokens_.size()); }

  [[nodiscard]] std::vector<int32_t> encode(std::string_view text) const override;
  /// Throws:  mh::Error (exit code 5) for ids without a token
  [[nodiscard]] std::string decode(std::span<const int32_t> ids) const override;

  [[nodiscard]] std::string token(int32_t id) const override { return token_at(id).written; }

  /// Where a normalizer changes texts.
  [[nodiscard]] bool lossy() const override { return !normalizers_.empty(); }

  [[nodiscard]] std::optional<int32_t> end_of_document() const override { return eod_; }

  [[nodiscard]] SpecialIds special_ids() const override { return special_; }

private:
  struct Token {
    std::string written, bytes;
    bool known = false; // ids may have gaps
  };

  enum class Change : uint8_t { nfc, nfd, nfkc, nfkd, lower };

  void read_model(const nlohmann::json& model, const std::string& where);
  void read_normalizer(const nlohmann::json& component, const std::string& where);
  void read_pre_tokenizer(const nlohmann::json& component, const std::string& where);
  void read_post_processor(const nlohmann::json& component, const std::string& where);
  void read_added_tokens(const nlohmann::json& list, const std::string& where);
  void read_special_ids(const nlohmann::json& config, const std::string& where);
  void set_token(int32_t id, const std::string& written, const std::string& where, bool again);
  [[nodiscard]] std::string changed(std::string_view text) const;
  [[nodiscard]] const Token& token_at(int32_t id) const;
  void encode_part(std::string_view text, text::WordEncoder& encoder, std::vector<int32_t>& ret_ids)
      const;

  std::vector<Token> tokens_;
  std::unordered_map<std::string, int32_t> ids_;
  text::BytePairModel model_;
  std::unique_ptr<text::Splitter> splitter_;
  bool prefix_space_ = false;
  std::vector<Change> normalizers_;
  text::AddedTokens added_;            // looked for in the text itself
  text::AddedTokens normalized_added_; // in the normalized text
  std::vector<int32_t> before_, behind_;
  SpecialIds special_;
  std::optional<int32_t> eod_;
  text::Pool<text::WordEncoder> encoders_;
};

} // namespace mh::hf
