#pragma once
/// Documents of a tokenised corpus in an order of their own for every epoch, cut into samples.

#include "sample_order.hpp"

#include <megahost/indexed_dataset.hpp>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace mh::indexed {

/// The documents `first` to `last` (excluded) of a dataset, endlessly.
///
/// The documents are packed as Megatron packs them: the documents of an epoch in random order make
/// one stream of tokens; sample n is its tokens n * seq to (n + 1) * seq, the last one being also
/// the next sample's first; the samples of an epoch come in random order. Unlike there, an epoch
/// ends with its last whole sample, so that an epoch depends on nothing but its number and the key.
/// Nothing is written to disk: the orders are computed (`mh::shuffled`), and of the documents'
/// lengths one sum for every 64 is kept, for the two epochs used last.
///
/// Thread:  any
class Packing final : public SampleOrder {
public:
  /// Without a key nothing is shuffled: documents and samples come in the order of the file. With
  /// `whole` an epoch ends with its last token, and its last sample may be short.
  Packing(
      const IndexedDataset& dataset,
      uint64_t first,
      uint64_t last,
      uint64_t seq,
      std::optional<uint64_t> key,
      bool whole = false
  );

  [[nodiscard]] uint64_t documents() const { return count_; }

  [[nodiscard]] uint64_t tokens() const { return tokens_; }

  /// Samples of an epoch.
  [[nodiscard]] uint64_t size() const override {
    return tokens_ == 0 ? 0 : (tokens_ - 1 + (whole_ ? seq_ - 1 : 0)) / seq_;
  }

  /// The pieces of sample `index`, seq + 1 tokens in all, the last of `whole` fewer. There must be
  /// samples in an epoch.
  [[nodiscard]] std::vector<DocumentRange> sample(uint64_t index) const override;

private:
  struct Epoch {
    uint64_t number = 0;
    uint64_t key = 0;
    std::vector<uint64_t> begins; // tokens before every kBlock-th document of the order
  };

  [[nodiscard]] std::shared_ptr<const Epoch> epoch(uint64_t number) const;
  [[nodiscard]] std::shared_ptr<const Epoch> make_epoch(uint64_t number) const;
  [[nodiscard]] uint64_t document(const Epoch& epoch, uint64_t place) const;
  [[nodiscard]] uint64_t order(uint64_t place, uint64_t count, uint64_t key) const;

  const IndexedDataset& dataset_;
  uint64_t first_;
  uint64_t count_;
  uint64_t seq_;
  std::optional<uint64_t> key_;
  bool whole_;
  uint64_t tokens_;
  mutable std::mutex mutex_;
  mutable std::array<std::shared_ptr<const Epoch>, 2> recent_; // the newest first
};

} // namespace mh::indexed
