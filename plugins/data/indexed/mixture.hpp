#pragma once
/// The samples of one split: which corpora they come from, and which of each.

#include "blend.hpp"
#include "config.hpp"
#include "megatron_order.hpp"
#include "sample_order.hpp"

#include <megahost/corpus.hpp>
#include <megahost/error.hpp>
#include <megahost/indexed_dataset.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mh::indexed {

/// A corpus's part of a split.
struct Member {
  std::string name;
  size_t dataset = 0;
  uint64_t first = 0, last = 0;                      ///< its documents
  std::optional<std::pair<double, double>> shares{}; ///< part of the corpus; none: all of it
  uint64_t tokens = 0;
  double sample_tokens = 0; ///< tokens of a sample, on average
  std::optional<double>
      weight{}; ///< its share of the samples, in some unit; none: as much as it has
  std::unique_ptr<SampleOrder> order{};
};

class Mixture {
public:
  /// A split without any document: it was not asked for.
  Mixture() = default;

  /// masks:   of supervised corpora which tokens count, else none
  /// Throws:  mh::Error (exit code 5) if a corpus has less than one sample for the split
  Mixture(
      const Config& config,
      const Corpus::Args& args,
      Split split,
      const std::vector<SourceConfig>& sources,
      const std::vector<IndexedDataset>& datasets,
      const std::vector<IndexedDataset>& masks
  );

  struct Place {
    const Member& member;
    std::vector<DocumentRange> pieces;
    uint64_t number = 0; ///< number of the sample among the member's
  };

  /// The tokens of a sample of the split, which must have some.
  [[nodiscard]] Place at(uint64_t index) const;

  /// Samples of an epoch.
  [[nodiscard]] uint64_t size() const { return size_; }

  /// The parts of each corpus one after the other, if they are evaluated under their names.
  [[nodiscard]] const std::vector<Corpus::Part>& parts() const { return parts_; }

  [[nodiscard]] const std::vector<Member>& members() const { return members_; }

  /// Samples that each member gives to the first `samples` of the run, as its shares say.
  [[nodiscard]] std::vector<double> expected(uint64_t samples) const;

private:
  void make_megatron(const Config& config, const Corpus::Args& args, Split split);
  void make_order(
      Member& ret_member,
      std::optional<int64_t> samples,
      const Config& config,
      const Corpus::Args& args,
      Split split
  );
  void make_parts();

  const std::vector<IndexedDataset>* datasets_ = nullptr;
  std::vector<Member> members_;
  std::vector<StagedBlend::Stage> stages_; // none: parts, or one member alone
  std::unique_ptr<StagedBlend> blend_;
  std::unique_ptr<CyclicOrder> cyclic_;
  std::vector<Corpus::Part> parts_;
  uint64_t size_ = 0;
  bool endless_ = false; // the orders go on behind the last sample; else the first comes again
};

} // namespace mh::indexed
