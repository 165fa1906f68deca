#pragma once
/// Tokenised corpora in Megatron's format (.bin and .idx) as a corpus, one or a blend of several.

#include "blend.hpp"
#include "packing.hpp"

#include <megahost/corpus.hpp>
#include <megahost/error.hpp>
#include <megahost/schema.hpp>

#include <array>
#include <memory>
#include <optional>

namespace mh::indexed {

/// Documents packed into samples of `seq_length` tokens (see Packing).
///
/// A split is a range of each corpus's documents in the order of the file, as Megatron cuts it. The
/// order of train depends on the seed; that of valid and test is always the same. A blend draws
/// each sample from one of the corpora (see Blend); its epoch is the sum of theirs.
class IndexedCorpus final : public Corpus {
public:
  struct Config {
    std::vector<std::string> paths;
    std::vector<double> weights;
    bool reset_positions = false;
    bool reset_attention = false;
    bool mask_eod_loss = false;
    bool shuffle = true;
    std::optional<int64_t> eod;
  };

  static void fields(Fields<Config>& fields);

  /// Those of decoders; "positions" and "segments" if resets are asked for.
  static std::vector<ArraySpec> arrays(const Config& config, const Args& args);

  /// Opens and checks all files.
  ///
  /// Throws:  mh::Error (exit code 5) for files that are missing or damaged, and a training split
  ///          with less than one sample; another split with less has none, and `sample` says why
  IndexedCorpus(const Config& config, const Args& args);

  [[nodiscard]] int64_t size(Split split) const override;
  /// Throws:  mh::Error (exit code 5) for an id outside the vocabulary, with its document
  [[nodiscard]] Sample sample(Split split, int64_t index) const override;
  [[nodiscard]] std::string summary() const override;

private:
  struct Mixture {
    std::vector<std::unique_ptr<Packing>> packings; // one for each dataset
    std::unique_ptr<Blend> blend;
    uint64_t size = 0;
    std::optional<Error> lacks{}; // why it is empty although its share is not 0
  };

  [[nodiscard]] Mixture mixture_or_reason(Split split) const;
  [[nodiscard]] Mixture make_mixture(Split split) const;
  void check_id(const IndexedDataset& dataset, const Piece& piece, size_t at, int64_t id) const;

  Config config_;
  Args args_;
  std::optional<int64_t> eod_;
  std::vector<IndexedDataset> datasets_;
  std::array<Mixture, 3> splits_;
};

} // namespace mh::indexed
