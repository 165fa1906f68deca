#pragma once
/// GPT-2's tokenizer: byte-level byte-pair encoding.

#include "core/text/byte_level.hpp"
#include "vocabulary.hpp"

#include <megahost/schema.hpp>
#include <megahost/tokenizer.hpp>

#include <memory>
#include <optional>

namespace mh::gpt2 {

/// The ids of Hugging Face's `tokenizers` with ByteLevel and BPE. Any bytes are encoded, and come
/// back unchanged; a run of bytes that are no UTF-8 is a word. Special tokens that stand in a text
/// become their ids.
///
/// Thread:  any
class Gpt2Tokenizer final : public Tokenizer {
public:
  struct Config {
    std::string vocab;
    std::string merges;
    std::string eod = "<|endoftext|>";
    std::vector<std::string> special_tokens;
  };

  static void fields(Fields<Config>& fields);

  /// Throws:  mh::Error (exit code 5) for files that cannot be read or are damaged, see
  ///          `read_vocabulary`; special tokens that the vocabulary lacks
  Gpt2Tokenizer(const Config& config, const Args& args);

  [[nodiscard]] int64_t vocab() const override { return vocabulary_.size; }

  [[nodiscard]] std::vector<int32_t> encode(std::string_view text) const override {
    return text_.encode(text);
  }

  /// Throws:  mh::Error (exit code 5) for ids without a token
  [[nodiscard]] std::string decode(std::span<const int32_t> ids) const override;

  [[nodiscard]] std::optional<int32_t> end_of_document() const override { return eod_; }

private:
  Vocabulary vocabulary_;
  text::ByteLevel text_;
  std::optional<int32_t> eod_;
};

} // namespace mh::gpt2
