#pragma once
/// Samples of the inverse cloze task: which text was this sentence taken out of?

#include "../masked/passages.hpp"
#include "samples.hpp"

#include <megahost/corpus.hpp>
#include <megahost/indexed_dataset.hpp>
#include <megahost/schema.hpp>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace mh::retrieval {

/// The query is a sentence of a block of whole sentences, out of which it is taken most of the
/// time; or, of source code, a function's comment, whose block is the function.
///
/// Arrays:  see Samples; there are no hard negatives
/// Random:  a pure function of (seed, split, index); valid and test do not depend on the seed
/// Source:  arXiv:1906.00300 section 4; options as Megatron-LM's ICTDataset
class IctCorpus final : public Corpus {
public:
  struct Config : masked::PassagesConfig {
    std::string query = "sentence";
    double query_in_block = 0.1;
    bool one_sentence = false;
    std::vector<std::string> titles;
  };

  static void fields(Fields<Config>& fields);

  static std::vector<ArraySpec> arrays(const Config&, const Args& args) {
    return Samples::arrays(args);
  }

  /// Throws:  mh::Error as Samples and Passages
  IctCorpus(const Config& config, const Args& args);

  [[nodiscard]] int64_t size(Split split) const override;
  [[nodiscard]] Sample sample(Split split, int64_t index) const override;
  [[nodiscard]] std::string summary() const override;

private:
  /// A comment, and the function behind it.
  struct Function {
    std::string comment, code;
  };

  [[nodiscard]] bool is_code() const { return config_.query == "comment"; }

  void read_functions();
  void cut_passages();
  [[nodiscard]] PairIds title_of(const masked::Passage& passage) const;

  Config config_;
  Args args_;
  Samples samples_;
  std::unique_ptr<masked::Passages> passages_; // null of code
  std::vector<IndexedDataset> titles_;         // one for each of config_.paths, or none
  std::array<std::vector<masked::Passage>, 3> passages_by_split_;
  std::vector<Function> functions_; // in the order of hashes of their comments
  std::array<uint64_t, 3> ends_{};  // ends of the splits' functions
  size_t files_ = 0;
};

} // namespace mh::retrieval
