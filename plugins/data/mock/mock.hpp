#pragma once
/// Made-up sequences, for tests and benchmarks: no file, no tokenizer, any vocabulary.

#include <megahost/corpus.hpp>
#include <megahost/schema.hpp>

namespace mh {

/// Sample i is a pure function of (seed, split, i). The structure that a model can learn depends on
/// the pattern:
///
///   markov   a token is followed by one of `branches` others, all equally likely: the loss falls
///            to ln(branches) once the table of followers is learnt
///   repeat   the first `period` tokens are random, and repeated from then on: learnt by looking
///            back
///   count    each token is the one before it plus a step, different in each sample
///   random   nothing: the loss stays at ln(vocab)
class MockCorpus final : public Corpus {
public:
  struct Config {
    std::string pattern = "markov";
    int64_t samples = 100000;
    int64_t branches = 4;
    int64_t period = 16;
  };

  static void fields(Fields<Config>& fields);

  /// Throws:  mh::Error if there is no vocabulary
  MockCorpus(const Config& config, const Args& args);

  /// `samples` times the split's share, at least 1 if the share is not 0.
  [[nodiscard]] int64_t size(Split split) const override;
  [[nodiscard]] Sample sample(Split split, int64_t index) const override;
  [[nodiscard]] std::string summary() const override;

private:
  Config config_;
  Args args_;
};

} // namespace mh
