#pragma once
/// Text from a model.

#include "core/train/session.hpp"

#include <cstdint>
#include <string>

namespace mh {

struct SampleOptions {
  int64_t characters = 300;
  double temperature = 0.8;
  uint64_t seed = 1234;
  double seconds = 20; ///< stop early after this time
};

struct SampledText {
  std::string prompt; ///< what the model was given
  std::string text;   ///< what it wrote
};

/// Continues the beginning of a sample of the corpus, one token at a time; each looks back at most
/// `model.seq_length` tokens.
[[nodiscard]] SampledText sample_text(const Session& session, const SampleOptions& options);

} // namespace mh
