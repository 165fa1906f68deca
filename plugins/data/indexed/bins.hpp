#pragma once
/// Samples of whole documents: nothing is cut that fits, and no label leads from one to another.

#include "sample_order.hpp"

#include <megahost/indexed_dataset.hpp>

#include <cstdint>
#include <optional>
#include <vector>

namespace mh::indexed {

/// Documents in samples of `seq` tokens and their labels, each document from its first token on;
/// longer ones are cut, and pieces of them in which no label counts are left out. `pad`: one piece in
/// each sample. First fit: a piece goes into the first
/// sample that has room, of the kOpen that were opened last.
///
/// It holds 24 bytes for each document. The documents of a sample depend on the key only, their
/// order on the epoch, too.
///
/// Thread:  any
class Bins final : public SampleOrder {
public:
  /// Without a key nothing is shuffled.
  ///
  /// counts:  for each token a 1 if it counts as a label, else a 0; null: all do
  Bins(
      const IndexedDataset& dataset,
      uint64_t first,
      uint64_t last,
      uint64_t seq,
      std::optional<uint64_t> key,
      bool first_fit,
      const IndexedDataset* counts = nullptr
  );

  [[nodiscard]] uint64_t size() const override { return begins_.size() - 1; }

  [[nodiscard]] std::vector<DocumentRange> sample(uint64_t index) const override;

private:
  std::optional<uint64_t> key_;
  std::vector<DocumentRange> pieces_; // sample by sample
  std::vector<uint64_t> begins_;      // where each sample begins in `pieces_`, and their number
};

} // namespace mh::indexed
