#pragma once
/// Samples of a file of queries, their right contexts and hard negatives.

#include "samples.hpp"

#include <megahost/corpus.hpp>
#include <megahost/schema.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace mh::retrieval {

/// A line of the file is an object:
///
///   {"query": "who wrote it", "positive": "She wrote it.", "negatives": ["He read it.", ...]}
///
/// A context is a text, or {"title": ..., "text": ...}. DPR's names are known, too: "question",
/// "positive_ctxs" (of which the first is taken) and "hard_negative_ctxs".
///
/// Arrays:  see Samples; where there are more hard negatives than the model reads, epochs draw some
/// Random:  a pure function of (seed, split, index); valid and test do not depend on the seed
/// Source:  arXiv:2004.04906
class PairsCorpus final : public Corpus {
public:
  struct Config {
    std::vector<std::string> paths;
  };

  static void fields(Fields<Config>& fields);

  static std::vector<ArraySpec> arrays(const Config&, const Args& args) {
    return Samples::arrays(args);
  }

  /// Throws:  mh::Error (exit code 5) naming file and line of what is no pair; as Samples
  PairsCorpus(const Config& config, const Args& args);

  [[nodiscard]] int64_t size(Split split) const override;
  [[nodiscard]] Sample sample(Split split, int64_t index) const override;
  [[nodiscard]] std::string summary() const override;

private:
  struct Text {
    std::string title, text;
  };

  struct Pair {
    std::string query;
    Text positive;
    std::vector<Text> negatives;
  };

  friend class PairReader;
  [[nodiscard]] PairContext context_of(const Text& text) const;

  Args args_;
  Samples samples_;
  std::vector<Pair> pairs_; // in the order of hashes of their queries
  std::array<uint64_t, 3> ends_{};
};

} // namespace mh::retrieval
