#pragma once
/// BERT's samples: two passages, some of whose tokens are hidden.

#include "draws.hpp"
#include "megatron_masks.hpp"
#include "megatron_samples.hpp"
#include "passages.hpp"
#include "whole_words.hpp"

#include <megahost/corpus.hpp>
#include <megahost/schema.hpp>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace mh::masked {

/// [CLS] first passage [SEP] second passage [SEP], then padding.
///
/// Arrays:  tokens; labels and loss_mask: what the hidden tokens were; token_types: 1 from the
///          second passage on; segments: padding is a document of its own; order_labels: 1 where the
///          second passage does not go on from the first; order_loss_mask: 1 at [CLS]
/// Random:  a pure function of (seed, split, index); valid and test do not depend on the seed but in
///          Megatron's order
/// Source:  arXiv:1810.04805; order of sentences arXiv:1909.11942; n-grams and short samples as
///          Megatron-LM's BERTMaskedWordPieceDataset, whose order is megatron-core 0.16.1's
///          bert_dataset.py
class BertCorpus final : public Corpus {
public:
  struct Config : SamplesConfig {
    std::string pair = "order";
    double mask_prob = 0.15;
    bool whole_words = false;
    int64_t max_ngram = 1;
    double short_seq_prob = 0.1;
  };

  static void fields(Fields<Config>& fields);
  static std::vector<ArraySpec> arrays(const Config& config, const Args& args);

  /// Throws:  mh::Error for a tokenizer without mask, cls or sep, and as Passages
  BertCorpus(const Config& config, const Args& args);

  [[nodiscard]] int64_t size(Split split) const override;
  [[nodiscard]] Sample sample(Split split, int64_t index) const override;
  [[nodiscard]] Evaluation evaluation() const override;
  [[nodiscard]] std::string summary() const override;

private:
  using Ids = std::vector<int64_t>;

  struct Pair {
    Ids first, second;
    bool apart = false; // the second does not go on from the first
  };

  /// A pair joined, before and after some of its tokens were hidden.
  struct Masked {
    Ids labels, tokens;
    std::vector<float> mask; // 1: hidden
    size_t second = 0;       // where the second passage begins, or the end
    bool apart = false;
  };

  [[nodiscard]] const std::vector<Passage>& passages(Split split) const {
    return passages_by_split_[static_cast<size_t>(split)];
  }

  [[nodiscard]] std::pair<Ids, Ids> halves(const Passage& passage, Draws& draws) const;
  [[nodiscard]] Pair pair(Split split, uint64_t number, Draws& draws) const;
  [[nodiscard]] Masked joined(const Pair& pair) const;
  [[nodiscard]] Masked own_sample(Split split, int64_t index) const;
  [[nodiscard]] Masked megatron_sample(Split split, int64_t index) const;
  [[nodiscard]] int64_t hidden_as(int64_t id, Draws& draws) const;
  void hide(Ids& tokens, std::vector<float>& ret_mask, Draws& draws) const;

  Config config_;
  Args args_;
  int64_t cls_, sep_, mask_, pad_;
  std::optional<Passages> passages_; // those of our own order, as what follows
  std::optional<WholeWords> words_;
  std::vector<bool> special_; // by id
  std::array<std::vector<Passage>, 3> passages_by_split_;
  std::optional<MegatronSamples> megatron_; // those of Megatron's
  std::optional<MegatronMasks> masks_;
};

} // namespace mh::masked
