#pragma once
/// How much of a run's time has made it better, and where the rest went, over all of its starts.

#include "core/records/journal.hpp"
#include "core/records/records.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// Seconds by cause; together they are `total`.
struct Goodput {
  double total = 0;      ///< from the start of its first process to its newest sign of life
  double useful = 0;     ///< steps that count, without waiting for data
  double start_up = 0;   ///< start of processes, until they could do a step
  double restart = 0;    ///< from the last sign of life of a start that failed to the next start
  double recomputed = 0; ///< steps behind the checkpoint that a restart went on from
  double skipped = 0;    ///< steps without an update
  double data = 0;       ///< steps waited for samples
  double saving = 0;     ///< steps waited for checkpoints
  double evaluation = 0;
  double other = 0;
  int64_t starts = 0;

  [[nodiscard]] double share() const { return total > 0 ? useful / total : 0; }

  struct Cause {
    const char *key, *name; ///< "start_up", "start-up"
    double seconds;
  };

  /// All but `useful`.
  [[nodiscard]] std::vector<Cause> causes() const;

  /// The same, the largest first.
  [[nodiscard]] std::vector<Cause> largest_causes() const;
};

/// The time between a run's end and its next start counts where it did not end by itself: after a
/// failure, and after SIGTERM and SIGUSR1, with which schedulers end a job.
///
/// Returns: nothing of a run without a journal
[[nodiscard]] std::optional<Goodput>
goodput(const std::vector<StepRecord>& steps, const std::vector<JournalEvent>& journal);

/// "91.3% of 2h 05m; 3.0% start-up, 2.1% recomputed steps; 2 starts": causes of at least 0.1%, the
/// largest first.
[[nodiscard]] std::string goodput_text(const Goodput& goodput);

} // namespace mh
