#pragma once
/// SentencePiece's tokenizers: byte pairs by score (Llama 2, Mistral, Gemma) and Unigram (T5,
/// XLM-R).

#include "core/text/added_tokens.hpp"
#include "core/text/scored_pairs.hpp"
#include "core/text/unigram.hpp"
#include "normalizer.hpp"

#include <megahost/schema.hpp>
#include <megahost/tokenizer.hpp>

#include <memory>
#include <string>

namespace mh::sentencepiece {

/// The ids of sentencepiece 0.2. Control pieces such as <s> are not looked for in texts, extra ids
/// are. Bytes that are no UTF-8 are encoded as U+FFFD. In texts of more than some 50,000 pieces two
/// ways to cut a word whose scores are equal but for rounding may be told apart in another way.
///
/// Thread:  any
class SentencePieceTokenizer final : public Tokenizer {
public:
  struct Config {
    std::string path;
    bool add_bos = false;
    bool add_eos = false;
    int64_t extra_ids = 0;
  };

  static void fields(Fields<Config>& fields);

  /// Throws:  mh::Error (exit code 5) as `read_model`; `add_bos` or `add_eos` where the model has
  ///          no such piece
  SentencePieceTokenizer(const Config& config, const Args& args);

  [[nodiscard]] int64_t vocab() const override {
    return static_cast<int64_t>(model_.pieces.size());
  }

  [[nodiscard]] std::vector<int32_t> encode(std::string_view text) const override;

  /// Bytes of byte fallback come back as they are, whole characters or not.
  ///
  /// Throws:  mh::Error (exit code 5) for ids without a piece
  [[nodiscard]] std::string decode(std::span<const int32_t> ids) const override;

  [[nodiscard]] std::string token(int32_t id) const override { return piece_at(id).text; }

  /// U+2581 comes back as a blank, if nothing else changes.
  [[nodiscard]] bool lossy() const override { return true; }

  [[nodiscard]] std::optional<int32_t> end_of_document() const override { return special_.eos; }

  [[nodiscard]] SpecialIds special_ids() const override { return special_; }

private:
  void add_extra_ids(int64_t count, const std::string& file);
  void make_pairs();
  void make_unigram();
  [[nodiscard]] std::optional<int32_t> find(std::string_view text) const;
  [[nodiscard]] const ScoredPiece& piece_at(int32_t id) const;

  ModelFile model_;
  Normalizer normalizer_;
  SpecialIds special_;
  bool add_bos_, add_eos_;
  text::TokenMap ids_;
  text::AddedTokens extra_;
  std::unique_ptr<text::WordModel> word_model_;
  std::unique_ptr<text::Splitter> splitter_; // null: a text is one word
  text::Pool<text::WordEncoder> encoders_;
};

} // namespace mh::sentencepiece
