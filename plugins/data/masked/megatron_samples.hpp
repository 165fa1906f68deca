#pragma once
/// Megatron's samples of sentences: which of them make one, and in which order samples are read.
///
/// Source:  megatron-core 0.16.1, megatron/core/datasets/masked_dataset.py and helpers.cpp

#include "../indexed/blend.hpp"
#include "../indexed/legacy_random.hpp"
#include "../indexed/megatron_order.hpp"
#include "passages.hpp"

#include <megahost/corpus.hpp>
#include <megahost/error.hpp>
#include <megahost/indexed_dataset.hpp>
#include <megahost/schema.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mh::masked {

/// Texts, and the order in which a corpus reads them.
struct SamplesConfig : PassagesConfig {
  std::string order = "megahost";
  std::vector<double> weights;
  std::string dataloader = "single";
  bool data_sharding = true;

  [[nodiscard]] bool megatron() const { return order == "megatron"; }
};

/// A sentence about what does not fit in these fields, or nothing.
[[nodiscard]] std::string check_samples(const SamplesConfig& config);

template <class C>
void samples_fields(Fields<C>& f) {
  passages_fields(f);
  f.add(
       "order",
       &C::order,
       "which texts make a sample, and what is hidden of them: megahost draws it, megatron is "
       "megatron-core 0.16's bit for bit, of tokenised corpora whose sequences are sentences"
  )
      .one_of({"megahost", "megatron"});
  f.add(
      "weights", &C::weights, "Megatron's order: share of each path among the samples, in any unit"
  );
  f.add(
       "dataloader",
       &C::dataloader,
       "Megatron's way of reading: single takes samples in their order, cyclic shuffles them anew "
       "each epoch"
  )
      .one_of({"single", "cyclic"});
  f.add(
      "data_sharding",
      &C::data_sharding,
      "Megatron's cyclic order: each data-parallel rank shuffles a part of its own"
  );
  f.check("order", [](const C& config) { return check_samples(config); });
}

/// Consecutive sentences of a document, and to how many tokens they are to be cut.
struct SentenceRun {
  uint64_t first = 0;
  uint32_t count = 0;
  uint32_t target = 0;
};

/// How sentences are put together.
struct SentenceTerms {
  int64_t longest = 0; ///< tokens of a sample
  int64_t fewest = 1;  ///< sentences of a sample
  double short_prob = 0;
  int32_t seed = 0;
};

/// helpers.cpp, build_mapping: samples of the documents [first, last), as many epochs as it takes
/// to have `wanted`; 0: one epoch. None where an epoch has no sample, which Megatron would look for
/// two billion times.
[[nodiscard]] std::vector<SentenceRun> sentence_runs(
    const IndexedDataset& dataset,
    std::pair<uint64_t, uint64_t> documents,
    int64_t wanted,
    const SentenceTerms& terms
);

/// The samples of all splits of one corpus or of several, blended as Megatron blends them.
///
/// Thread:  any
class MegatronSamples {
public:
  /// Throws:  mh::Error (exit code 5) for files that are missing or damaged, and a training split
  ///          without a sample; another split without one has none, and `sample` says why
  MegatronSamples(const SamplesConfig& config, const Corpus::Args& args, SentenceTerms terms);

  struct Sentences {
    std::vector<std::vector<int64_t>> ids;
    int64_t target;              ///< tokens that they are to be cut to
    indexed::RandomState random; ///< the sample's own
  };

  /// Throws:  mh::Error (exit code 5) for an id outside the model's vocabulary
  [[nodiscard]] Sentences sample(Split split, int64_t index) const;

  /// Samples of an epoch.
  [[nodiscard]] int64_t size(Split split) const {
    return static_cast<int64_t>(splits_[static_cast<size_t>(split)].size);
  }

  /// "in Megatron's order: 12 documents, 1,234 tokens"
  [[nodiscard]] std::string found() const;

private:
  struct Part {
    uint64_t size = 0;
    std::vector<std::vector<SentenceRun>> runs{}; // one list for each corpus
    std::unique_ptr<indexed::Blend> blend{};
    std::unique_ptr<indexed::CyclicOrder> cyclic{};
    std::optional<Error> lack{}; // why there are none although they were asked for
  };

  [[nodiscard]] Part make_part(const SamplesConfig& config, Split split) const;

  [[nodiscard]] std::vector<SentenceRun>
  runs_of(const IndexedDataset& dataset, Split split, int64_t wanted) const;

  Corpus::Args args_;
  SentenceTerms terms_;
  std::vector<IndexedDataset> datasets_;
  std::array<Part, 3> splits_;
};

} // namespace mh::masked
