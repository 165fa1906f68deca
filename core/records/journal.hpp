#pragma once
/// The events of a run in all of its starts: the file journal.jsonl of its folder, an event a line.
/// Metrics lose the steps that a restart does again; the journal loses nothing.

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

namespace mh {

struct JournalEvent {
  /// "start", "evaluation", "save", "unsaved", "skip", "rewind", "repeat", "straggler", "warning", "failure",
  /// "restart" or "end".
  std::string kind;
  double time = 0;    ///< Unix time at which it was over; 0: now
  int64_t step = 0;   ///< completed ones
  int64_t ranks = 0;  ///< ranks of a start
  double seconds = 0; ///< duration for which steps waited; for a start: since its process began
  /// The steps behind the checkpoint of a start or a rewind, which are done again, and the time
  /// that they had taken.
  int64_t lost_steps = 0;
  double lost_seconds = 0;
  double alive = 0; ///< for a start: the time of the last metric before it; 0 if there is none
  std::string text{};
};

/// Appends to the journal of a run. An event that cannot be written is left out: no run ends for
/// its journal.
///
/// Thread:  any may note
class Journal {
public:
  Journal() = default;

  explicit Journal(const std::filesystem::path& folder) { open(folder); }

  /// From now on events go there; those before were not kept.
  void open(const std::filesystem::path& folder);
  void note(JournalEvent event) const;

private:
  mutable std::mutex mutex_;
  std::filesystem::path file_;
};

/// Seconds since this process was started; 0 where the system does not say.
[[nodiscard]] double process_age();

/// The events of a run folder; none where there is no journal. Lines that are no events are passed
/// over.
[[nodiscard]] std::vector<JournalEvent> read_journal(const std::filesystem::path& folder);

} // namespace mh
