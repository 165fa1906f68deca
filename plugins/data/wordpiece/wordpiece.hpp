#pragma once
/// BERT's tokenizer: WordPiece over a vocab.txt.

#include "core/text/added_tokens.hpp"
#include "core/text/word_pieces.hpp"

#include <megahost/schema.hpp>
#include <megahost/tokenizer.hpp>

#include <string>
#include <vector>

namespace mh::wordpiece {

/// The ids of Hugging Face's `tokenizers` with BertNormalizer, BertPreTokenizer and WordPiece. The
/// special tokens [PAD], [UNK], [CLS], [SEP] and [MASK] that stand in a text become their ids.
/// Bytes that are no UTF-8 become U+FFFD, which is left out.
///
/// Thread:  any
class WordPieceTokenizer final : public Tokenizer {
public:
  struct Config {
    std::string path;
    bool lower_case = true;
    bool chinese = true;
    bool add_special_tokens = false;
    bool bos_eos = false;
    int64_t extra_ids = 0;
  };

  static void fields(Fields<Config>& fields);

  /// Throws:  mh::Error (exit code 5) for a file that cannot be read; a line that is empty, no
  ///          UTF-8 or given twice; no [UNK]; no [CLS] and [SEP] where they are to be added
  WordPieceTokenizer(const Config& config, const Args& args);

  [[nodiscard]] int64_t vocab() const override { return static_cast<int64_t>(tokens_.size()); }

  [[nodiscard]] std::vector<int32_t> encode(std::string_view text) const override;

  /// Words with blanks between them, none before punctuation.
  ///
  /// Throws:  mh::Error (exit code 5) for ids without a token
  [[nodiscard]] std::string decode(std::span<const int32_t> ids) const override;

  [[nodiscard]] std::string token(int32_t id) const override { return token_at(id); }

  [[nodiscard]] bool lossy() const override { return true; }

  /// [SEP], as in BERT's own data.
  [[nodiscard]] std::optional<int32_t> end_of_document() const override { return special_.sep; }

  [[nodiscard]] SpecialIds special_ids() const override { return special_; }

private:
  void read_tokens(const std::string& path);
  /// The id of a token, which is added behind the others if it is not there.
  int32_t find_or_add(const std::string& token);
  void add_extra_ids(int64_t count, const std::string& path);
  [[nodiscard]] const std::string& token_at(int32_t id) const;
  void encode_words(
      std::string_view text, text::WordEncoder& encoder, std::vector<int32_t>& ret_ids
  ) const;

  std::vector<std::string> tokens_;
  text::WordPieceModel model_;
  text::BertRules rules_;
  text::AddedTokens added_;
  SpecialIds special_;
  bool add_special_tokens_;
  text::Pool<text::WordEncoder> encoders_;
};

} // namespace mh::wordpiece
