#pragma once
/// Text that a model writes at the end of a run, to show what it has learned.

#include "core/session/generate.hpp"
#include "core/session/session.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace mh {

struct ClosingTextOptions {
  Sampling sampling{};
  int64_t characters = 300;
  double seconds = 20; ///< stop early after this time
};

struct ClosingText {
  std::string title; ///< says what the text is
  std::string text;
};

/// Continues the beginning of a sample of the corpus; an encoder reads what the sample has for it.
/// Where that has spans taken out, it is shown with those that the model writes, each token the
/// likeliest. Nothing where the model does not write.
[[nodiscard]] std::optional<ClosingText>
closing_text(const Session& session, const ClosingTextOptions& options);

} // namespace mh
