#pragma once
/// Mixing several corpora in given shares.

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace mh::indexed {

/// Megatron's rule: each sample comes from the corpus that lags most behind its share, weight *
/// max(i, 1) less the samples that it has given; the first one of several.
///
/// Thread:  any
/// Source:  Megatron-LM, megatron/core/datasets/helpers.cpp, build_blending_indices
class Blend {
public:
  /// At least one weight; each above 0. They are divided by their sum.
  explicit Blend(std::vector<double> weights);

  struct Place {
    size_t corpus = 0;
    uint64_t sample = 0; ///< of that corpus, counted from 0
  };

  /// Where sample `index` comes from. The rule knows no short cut: the counts of every 1,024th
  /// sample are kept, so that only the first call this far takes long (about 20 ns a sample and
  /// corpus).
  [[nodiscard]] Place at(uint64_t index) const;

private:
  using Counts = std::vector<uint64_t>;
  /// The corpus of sample `index` when the corpora have given `counts`.
  [[nodiscard]] size_t next(uint64_t index, const Counts& counts) const;

  std::vector<double> weights_;
  mutable std::mutex mutex_;
  mutable std::vector<Counts> marks_; // before every kStride-th sample
};

} // namespace mh::indexed
