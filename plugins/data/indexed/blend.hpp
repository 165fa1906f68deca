#pragma once
/// Mixing several corpora in given shares.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace mh::indexed {

/// Megatron's rule: each sample comes from the corpus that lags most behind its share, share *
/// max(i, 1) less the samples that it has given; the first one of several.
///
/// Thread:  any
/// Source:  Megatron-LM, megatron/core/datasets/helpers.cpp, build_blending_indices and
///          build_exhaustive_blending_indices
class Blend {
public:
  using Counts = std::vector<uint64_t>;

  /// shares:  of each corpus; they sum to 1. A corpus whose share is 0 gives nothing.
  /// limits:  samples after which a corpus gives no more; empty: none
  explicit Blend(std::vector<double> shares, Counts limits = {});

  struct Place {
    size_t corpus = 0;
    uint64_t sample = 0; ///< sample of that corpus, counted from 0
  };

  /// The source of sample `index`. The rule knows no short cut: the counts of every 1,024th sample
  /// are kept, so that only the first call this far takes long (about 20 ns a sample and corpus).
  [[nodiscard]] Place at(uint64_t index) const;

  /// Samples that each corpus gives before sample `index`.
  [[nodiscard]] Counts counts(uint64_t index) const;

private:
  /// The corpus of sample `index` when the corpora have given `counts`; their number if all have
  /// reached their limits.
  [[nodiscard]] size_t next(uint64_t index, const Counts& counts) const;
  void count(uint64_t index, Counts& ret_counts) const;

  std::vector<double> shares_;
  Counts limits_;
  mutable std::mutex mutex_;
  mutable std::vector<Counts> marks_; // before every kStride-th sample
};

/// Weights divided by their sum.
[[nodiscard]] std::vector<double> shares_of(std::vector<double> weights);

/// The samples of each corpus that Megatron makes for a blend of `wanted` ones: half a percent more
/// than its share. An epoch may have some more samples than wanted.
///
/// Source:  megatron-core 0.16.1, blended_megatron_dataset_builder.py
struct MegatronShares {
  std::vector<double> shares;
  std::vector<int64_t> made; ///< samples that each corpus is asked for
  uint64_t size = 0;         ///< samples of an epoch
};

[[nodiscard]] MegatronShares megatron_shares(std::vector<double> weights, int64_t wanted);

/// A blend whose shares change at given samples: from there on the next blend counts from 0, and
/// each corpus goes on where it was.
class StagedBlend {
public:
  struct Stage {
    uint64_t begin = 0; ///< the first sample
    std::vector<double> shares{};
    Blend::Counts limits{};
  };

  /// The first stage begins at 0, each later one after the one before it.
  explicit StagedBlend(const std::vector<Stage>& stages);

  [[nodiscard]] Blend::Place at(uint64_t index) const;

private:
  struct Part {
    uint64_t begin = 0;
    Blend::Counts given; // by the stages before it
    std::unique_ptr<Blend> blend;
  };

  std::vector<Part> parts_;
};

} // namespace mh::indexed
