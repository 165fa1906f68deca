#pragma once
/// Corpora: sample i as named arrays. No LibTorch here: a corpus can be fuzzed in a second.
///
/// A corpus says twice what its samples hold: `arrays` declares it from the options alone, before
/// any data are read, and `sample` gives it. Plans go by the declaration, so that a run can be
/// planned where its data are not; runs and `megahost plugins check` compare the two.

#include "megahost/export.hpp"
#include "megahost/kind.hpp"
#include "megahost/sample.hpp"
#include "megahost/sequence.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace mh {

class Tokenizer;

enum class Split : uint8_t { train, valid, test };

class MH_API Corpus {
public:
  static constexpr Kind kKind = Kind::corpus;

  struct Args {
    const Tokenizer* tokenizer = nullptr; ///< outlives the corpus
    int64_t seq_length = 0;
    int64_t vocab = 0;                    ///< the model's: ids must be below it
    std::array<double, 3> split{1, 0, 0}; ///< shares of train, valid, test; they sum to 1
    uint64_t seed = 1234;
    /// Different samples of a split that will be looked at, 0: all. A corpus that prepares its
    /// data at the start may prepare no more; its split is then as small.
    int64_t samples = 0;
    Sequences sequences{}; ///< sequences that the model reads in addition to seq_length tokens
    /// Samples that the run takes of each split from its first step to its last, evaluations
    /// included, 0: not known. For orders that are made for a number of samples, as Megatron's.
    std::array<int64_t, 3> wanted{};
    int64_t micro = 1;      ///< samples of a microbatch on a data-parallel rank
    int64_t data_ranks = 1; ///< data-parallel ranks
    /// The samples of a split are read once, to evaluate all of it: each token but the first of a
    /// stream is the label of one sample, whatever the order and the weights of training are. The
    /// last sample is filled up with tokens whose loss_mask is 0.
    bool whole_splits = false;
  };

  /// Samples `first` to `first + size` of a split, which are evaluated under a name of their own.
  struct Part {
    std::string name;
    int64_t first = 0;
    int64_t size = 0;
  };

  virtual ~Corpus();

  /// The arrays of every sample. Pure, and reads no data: what it is asked about may not be on this
  /// machine. A plugin whose samples hold others than a decoder's has a function of its own:
  ///
  /// ```cpp
  /// static std::vector<mh::ArraySpec> arrays(const Config& config, const Args& args);
  /// ```
  template <class Config>
  [[nodiscard]] static std::vector<ArraySpec> arrays(const Config&, const Args& args) {
    return decoder_arrays(args.seq_length);
  }

  /// Samples of one epoch of a split; 0 if its share is empty.
  [[nodiscard]] virtual int64_t size(Split split) const = 0;

  /// Sample `index` of a split, from 0 without end: epoch after epoch, each in an order of its own.
  /// A pure function: no state, any order of calls, any number of threads. It holds the arrays that
  /// `arrays` declares, and no others.
  ///
  /// Throws:  mh::Error with exit code 5 for ids outside the vocabulary or unreadable data
  [[nodiscard]] virtual Sample sample(Split split, int64_t index) const = 0;

  /// The parts of a split that have names, in order; none: it is evaluated as one. Together they
  /// are the whole split.
  [[nodiscard]] virtual std::vector<Part> parts(Split /*split*/) const { return {}; }

  /// The samples that the evaluations of a run read.
  enum class Evaluation : uint8_t {
    same,   ///< each the same ones, so that their values can be compared
    onward, ///< each those that follow the ones of the evaluation before it, as Megatron's
    whole,  ///< each all of the split, once
  };

  [[nodiscard]] virtual Evaluation evaluation() const { return Evaluation::same; }

  /// Further lines for the start of a run: what is read how often.
  [[nodiscard]] virtual std::vector<std::string> details() const { return {}; }

  /// One line for the start of a run: "text: 412 files, 31.2 MB, 31,207,113 tokens".
  [[nodiscard]] virtual std::string summary() const = 0;
};

} // namespace mh
