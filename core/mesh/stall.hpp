#pragma once
/// The report of ranks that make no progress: which rank waits for which.

#include "core/mesh/collective_log.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// A rank as another one sees it.
struct SeenRank {
  enum class Answer : uint8_t { alive, silent, unknown };
  Answer answer = Answer::unknown;
  std::string host{};
  RankProgress at{}; ///< progress in its last answer
};

/// Ranks that wait, and those that keep them waiting.
struct Stall {
  double seconds = 0;          ///< seconds that the first of them has waited
  std::vector<int64_t> late{}; ///< the ranks that the others wait for; none: no rank can be named
  std::string text;            ///< "waiting for rank 1 on n2, which ...; rank 0 on n1 waits in ..."
};

/// Follows who waits for whom to those that wait for none: ranks that do not answer, and ranks
/// that are busy elsewhere.
///
/// `patience`: seconds; a rank that has waited for less does not count
/// Returns:  nothing where no rank waits
[[nodiscard]] std::optional<Stall> find_stall(const std::vector<SeenRank>& ranks, double patience);

/// The text of a rank's progress, and the progress of a text.
[[nodiscard]] std::string progress_text(const RankProgress& progress);
[[nodiscard]] RankProgress parse_progress(const std::string& text);

} // namespace mh
