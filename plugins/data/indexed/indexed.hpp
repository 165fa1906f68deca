#pragma once
/// Tokenised corpora in Megatron's format (.bin and .idx) as a corpus, one or a blend of several.

#include "config.hpp"
#include "mixture.hpp"

#include <megahost/corpus.hpp>
#include <megahost/error.hpp>
#include <megahost/schema.hpp>

#include <array>
#include <memory>
#include <optional>

namespace mh::indexed {

/// Documents packed into samples of `seq_length` tokens (see Packing), or in Megatron's order.
///
/// A split is a range of each corpus's documents in the order of the file, as Megatron cuts it, or
/// the corpora that name it. The order of train depends on the seed; that of valid and test is
/// always the same but for Megatron's. A blend draws each sample from one of the corpora (see
/// Blend); its epoch is the sum of theirs.
class IndexedCorpus final : public Corpus {
public:
  using Config = indexed::Config;

  static void fields(Fields<Config>& fields);

  /// The arrays of decoders; "positions" and "segments" if resets are asked for, or if a sample
  /// holds several documents that do not see one another.
  static std::vector<ArraySpec> arrays(const Config& config, const Args& args);

  /// Opens and checks all files.
  ///
  /// Throws:  mh::Error (exit code 5) for files that are missing or damaged, and a training split
  ///          with less than one sample; another split with less has none, and `sample` says why
  IndexedCorpus(const Config& config, const Args& args);

  [[nodiscard]] int64_t size(Split split) const override;
  /// Throws:  mh::Error (exit code 5) for an id outside the vocabulary, with its document
  [[nodiscard]] Sample sample(Split split, int64_t index) const override;
  [[nodiscard]] std::vector<Part> parts(Split split) const override;
  [[nodiscard]] Evaluation evaluation() const override;
  /// The tokens that the run will read of each source, if there are several.
  [[nodiscard]] std::vector<std::string> details() const override;
  [[nodiscard]] std::string summary() const override;

private:
  using Ids = std::vector<int64_t>;

  /// The arrays of a sample.
  struct Rows {
    Ids tokens, labels, positions, segments;
    std::vector<float> loss_mask;
  };

  [[nodiscard]] const Mixture& mixture(Split split) const;
  void
  check_id(const IndexedDataset& dataset, const DocumentRange& piece, size_t at, int64_t id) const;
  [[nodiscard]] Rows stream_rows(const Mixture::Place& place) const;
  [[nodiscard]] Rows document_rows(const Mixture::Place& place) const;
  void open_masks();
  void read_piece(
      const Mixture::Place& place, const DocumentRange& piece, Ids& ret_ids, Ids& ret_mask
  ) const;
  void change_ids(const Mixture::Place& place, uint64_t number, Ids& ret_ids, Ids& ret_mask) const;

  Config config_;
  Args args_;
  std::optional<int64_t> eod_;
  int64_t pad_ = kNoPad; // id of padding; kNoPad: the tokenizer has none
  std::vector<SourceConfig> sources_;
  std::vector<IndexedDataset> datasets_;
  std::vector<IndexedDataset> masks_; // masks of supervised corpora: 1 for each token that counts
  std::array<Mixture, 3> splits_;
  std::array<std::optional<Error>, 3> lacks_; // why a split is empty although it was asked for

  static constexpr int64_t kNoPad = -1;
};

} // namespace mh::indexed
