#pragma once
/// The reports of processes that were started as ranks to whoever started them, through the pipe
/// that MEGAHOST_ERROR_FD names: lines of JSON on their set-up, and one if they fail.

#include "megahost/error.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace mh {

/// A rank that was started and has ended.
struct EndedRank {
  int status = 0;    ///< status in the form of waitpid
  std::string lines; ///< lines that it wrote
  bool told = false; ///< it was asked to end, so that its end says nothing of itself
};

/// How far a rank has come.
enum class RankPhase : uint8_t {
  none,
  met,    ///< it has met the others
  meshed, ///< it has connections to all that it needs
  started ///< its set-up is over
};

/// The line of a rank that has come so far; nothing where no launcher listens.
void report_phase(RankPhase phase);

/// The error of a run in which the rank `first` of those that were started here failed; the first
/// of them is rank `offset` of the run's `world` (0: there are no others).
///
/// Until their set-up is over all ranks do the same: a failure there is every rank's, unless
/// another is known to have fared otherwise. One that was asked to end before it came so far, or
/// that lost the others at an earlier place, is not. Later it is that rank's, unless all say the
/// same. Only a rank's own failure names it.
[[nodiscard]] Error explain_failure(
    const std::vector<EndedRank>& ranks, size_t first, int64_t offset = 0, int64_t world = 0
);

} // namespace mh
