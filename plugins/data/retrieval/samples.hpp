#pragma once
/// Samples of a retriever: a query, the context that answers it, and hard negatives.

#include <megahost/corpus.hpp>
#include <megahost/tokenizer.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mh::retrieval {

using PairIds = std::vector<int64_t>;

/// A context; without a title that is empty.
struct PairContext {
  PairIds title, text;
  int64_t number = 0; ///< contexts of one number are the same one
};

/// Makes samples of texts.
///
/// Arrays:  tokens: [CLS] title [SEP] text [SEP] and padding; query_tokens: [CLS] query [SEP];
///          negative1_tokens, ...; segments and NAME_segments: padding is a document of its own;
///          labels: the contexts' numbers, the right one's first; pair_mask: 1; negative_mask: 1
///          where there is such a negative
class Samples {
public:
  /// Throws:  mh::Error for a model that reads no sequence "query"
  [[nodiscard]] static std::vector<ArraySpec> arrays(const Corpus::Args& args);

  /// `corpus` is the name in messages.
  ///
  /// Throws:  mh::Error for a tokenizer without [CLS] and [SEP], special tokens outside the model's
  ///          vocabulary
  Samples(const Corpus::Args& args, std::string_view corpus);

  /// The most tokens that a context has room for, next to a title of so many.
  [[nodiscard]] uint64_t room(size_t title) const;

  /// Hard negatives of each sample.
  [[nodiscard]] size_t negatives() const { return negatives_; }

  /// The tokens of a text, without special ones at its ends.
  ///
  /// Throws:  mh::Error (exit code 5) for an id outside the model's vocabulary
  [[nodiscard]] PairIds encode(std::string_view text) const;

  /// Texts that are too long lose their ends; of `negatives` the first are taken.
  [[nodiscard]] Sample sample(
      const PairIds& query, const PairContext& context, const std::vector<PairContext>& negatives
  ) const;

private:
  void add(Sample& ret_sample, const std::string& sequence, PairIds ids, int64_t length) const;
  [[nodiscard]] PairIds ids_of(const PairContext& context) const;

  Corpus::Args args_;
  int64_t query_length_;
  size_t negatives_;
  int64_t cls_ = 0, sep_ = 0, pad_ = 0;
};

/// A number of a text for "labels".
[[nodiscard]] int64_t number_of(std::string_view text);

/// The end of the last of so many items in each split, by the shares of train, valid and test.
[[nodiscard]] std::array<uint64_t, 3>
split_ends(const std::array<double, 3>& shares, uint64_t count);

} // namespace mh::retrieval
