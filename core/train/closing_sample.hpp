#pragma once
/// A sample of what a model has learned, for the end of a run.

#include "core/train/generate.hpp"
#include "core/train/session.hpp"

#include <cstdint>
#include <string>

namespace mh {

struct SampleOptions {
  Sampling sampling{};
  int64_t characters = 300;
  double seconds = 20; ///< stop early after this time
};

struct SampledText {
  std::string prompt; ///< what the model was given
  std::string text;   ///< what it wrote
};

/// Continues the beginning of a sample of the corpus.
[[nodiscard]] SampledText sample_text(const Session& session, const SampleOptions& options);

} // namespace mh
