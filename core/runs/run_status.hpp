#pragma once
/// The state of a run now: read from its folder, by any machine that sees it.

#include "core/records/goodput.hpp"
#include "core/records/rank_times.hpp"
#include "core/runs/run_metrics.hpp"
#include "core/storage/file_lock.hpp"
#include "megahost/host.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

enum class RunState : uint8_t { starting, running, finished, stopped };

/// "running".
[[nodiscard]] std::string_view state_name(RunState state);

struct RunStatus {
  RunMetrics metrics;
  RunState state = RunState::stopped;
  std::optional<LockOwner> owner; ///< the process of rank 0, or the one that was
  int64_t iterations = 0;         ///< steps of the whole run; 0 if its recipe cannot be read
  double step_seconds = 0;        ///< these: medians of the newest 50 steps; 0 without steps
  double data_seconds = 0;
  double tokens_per_second = 0;
  int64_t skipped = 0;                 ///< steps without an update
  std::optional<int64_t> checkpoint{}; ///< step of the newest one
  std::string checkpoint_fault{};      ///< the reason why it cannot be read; else empty
  std::string
      unread_format{}; ///< format of its checkpoints, if no plugin here reads it; else empty
  std::optional<double> since_step{}; ///< seconds since the newest step or evaluation was written
  std::vector<JournalEvent> events{}; ///< events of all starts, the newest last
  std::optional<Goodput> goodput{};
  std::optional<RankTable> ranks{}; ///< times of the newest steps on several ranks

  /// The newest step; null if there is none.
  [[nodiscard]] const StepRecord* last() const {
    return metrics.steps.empty() ? nullptr : &metrics.steps.back();
  }

  /// The newest step that has losses; null if there is none.
  [[nodiscard]] const StepRecord* last_update() const;

  /// Whether it goes on.
  [[nodiscard]] bool goes_on() const {
    return state == RunState::starting || state == RunState::running;
  }

  /// Seconds to its end at the speed of late, for one that goes on.
  [[nodiscard]] std::optional<double> remaining() const;

  /// Whether it has been silent for far longer than a step takes.
  [[nodiscard]] bool is_silent() const;
};

/// A run that another machine does counts as running while its metrics are fresh, as locks need not
/// cross a network.
///
/// Throws:  mh::Error (exit code 5) if `folder` is no run folder
[[nodiscard]] RunStatus read_status(const std::string& folder, Host& host);

/// The same a moment later: of the metrics only what is new is read.
void update_status(RunStatus& run, Host& host);

} // namespace mh
