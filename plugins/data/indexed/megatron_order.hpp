#pragma once
/// Megatron's order of samples, read from its arrays.

#include "megatron_index.hpp"
#include "sample_order.hpp"

#include <megahost/indexed_dataset.hpp>

#include <memory>
#include <mutex>
#include <utility>

namespace mh::indexed {

/// Sample k is that of Megatron's GPTDataset; behind the last the first comes again. A sample that
/// is not full has fewer tokens than asked for.
///
/// Source:  gpt_dataset.py, _query_document_sample_shuffle_indices
class MegatronOrder final : public SampleOrder {
public:
  /// `terms`: those that the index was made by
  MegatronOrder(const IndexedDataset& dataset, MegatronIndex index, const IndexTerms& terms)
      : dataset_(dataset)
      , index_(std::move(index))
      , extra_(terms.extra_token ? 1 : 0)
      , tokens_(terms.seq + extra_)
      , last_may_be_short_(!terms.drop_last_partial) {}

  [[nodiscard]] uint64_t size() const override { return index_.size(); }

  /// Throws:  mh::Error (exit code 5) if the arrays point outside the corpus, or to more or fewer
  ///          tokens than a sample has: the lengths of its documents have changed since
  [[nodiscard]] std::vector<DocumentRange> sample(uint64_t index) const override;

private:
  const IndexedDataset& dataset_;
  MegatronIndex index_;
  int64_t extra_, tokens_; // tokens of a full sample
  bool last_may_be_short_;
};

/// The order in which Megatron's loader reads a dataset: the sample of number `index` of a run.
///
/// "single" is the order itself. "cyclic" shuffles each epoch anew with PyTorch's generator, on all
/// samples or, with `sharding`, for each data-parallel rank on a part of its own.
///
/// Source:  Megatron-LM, megatron/training/datasets/data_samplers.py,
///          MegatronPretrainingRandomSampler
class CyclicOrder {
public:
  /// total:  samples of the dataset
  CyclicOrder(uint64_t total, int64_t micro, int64_t data_ranks, bool sharding);

  [[nodiscard]] uint64_t at(uint64_t index) const;

private:
  [[nodiscard]] std::shared_ptr<const std::vector<uint32_t>> epoch(uint64_t number) const;

  uint64_t micro_, ranks_;
  bool sharding_;
  uint64_t active_; // samples of an epoch: whole microbatches of all ranks
  uint32_t shuffled_;
  mutable std::mutex mutex_;
  mutable uint64_t number_ = ~uint64_t{0};
  mutable std::shared_ptr<const std::vector<uint32_t>> order_;
};

} // namespace mh::indexed
