#pragma once
/// T5's samples: texts in which spans are replaced by sentinels, and the spans.

#include "draws.hpp"
#include "megatron_masks.hpp"
#include "megatron_samples.hpp"
#include "passages.hpp"

#include <megahost/corpus.hpp>
#include <megahost/schema.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mh::masked {

/// How many tokens a text has, and how they are divided.
struct SpanSizes {
  int64_t text = 0;   ///< tokens of a text
  int64_t hidden = 0; ///< tokens of these in spans
  int64_t spans = 0;

  /// The encoder's and the decoder's tokens, an end of the sequence counted.
  [[nodiscard]] int64_t encoder() const { return text - hidden + spans + 1; }

  [[nodiscard]] int64_t decoder() const { return hidden + spans + 1; }
};

/// The numbers of the longest text whose rest has room in `encoder_length` tokens.
///
/// Source:  t5.data.preprocessors.random_spans_helper
[[nodiscard]] SpanSizes span_sizes(int64_t encoder_length, double noise, double mean_span);

/// The encoder reads a text in which sentinels stand for spans; the decoder writes each sentinel
/// and what it stands for. Both end with an end of the sequence; the decoder's tokens begin with
/// the padding's id. In Megatron's order only the decoder ends so, and begins with the beginning of
/// a sequence; spans are up to `max_ngram` words, and lengths vary.
///
/// Arrays:  encoder_tokens; encoder_segments: padding is a document of its own; tokens, labels,
///          loss_mask and segments of the decoder
/// Random:  a pure function of (seed, split, index); valid and test do not depend on the seed but in
///          Megatron's order
/// Source:  arXiv:1910.10683, span corruption as in t5.data.preprocessors; Megatron's order:
///          megatron-core 0.16.1, t5_dataset.py
class SpanCorpus final : public Corpus {
public:
  struct Config : SamplesConfig {
    double mask_prob = 0.15;
    double mean_span = 3;
    bool whole_words = true;
    int64_t max_ngram = 10;
    double short_seq_prob = 0.1;
  };

  static void fields(Fields<Config>& fields);

  /// Throws:  mh::Error for a model without a sequence "encoder"
  static std::vector<ArraySpec> arrays(const Config& config, const Args& args);

  /// Throws:  mh::Error for a tokenizer without an end or enough sentinels, and a decoder that is
  ///          too short; in Megatron's order samples have as many spans as they were drawn, and
  ///          `sample` throws
  SpanCorpus(const Config& config, const Args& args);

  [[nodiscard]] int64_t size(Split split) const override;
  [[nodiscard]] Sample sample(Split split, int64_t index) const override;
  [[nodiscard]] Evaluation evaluation() const override;
  [[nodiscard]] std::string summary() const override;

private:
  using Ids = std::vector<int64_t>;

  /// The text that the encoder reads, and that which the decoder is to write.
  struct Texts {
    Ids encoder, labels;
  };

  void prepare_own();
  void prepare_megatron(const SpecialIds& ids);
  [[nodiscard]] Texts own_texts(Split split, int64_t index) const;
  [[nodiscard]] Texts megatron_texts(Split split, int64_t index) const;

  Config config_;
  Args args_;
  int64_t encoder_length_;
  int64_t start_, end_, pad_;
  Ids sentinels_;
  SpanSizes sizes_; // those of our own order, as what follows
  std::optional<Passages> passages_;
  std::array<std::vector<Passage>, 3> passages_by_split_;
  std::optional<MegatronSamples> megatron_; // those of Megatron's
  std::optional<MegatronMasks> masks_;
};

} // namespace mh::masked
