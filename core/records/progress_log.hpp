#pragma once
/// progress.txt of a run folder: a line at each start and each checkpoint, of all starts of a run, in
/// the form of Megatron-LM's --log-progress, so that what reads those reads these.
///
///     2026-11-30 10:00:00	Job ID: 712	# GPUs: 64	Starting job
///     2026-11-30 10:10:00	Job ID: 712	# GPUs: 64	Saved checkpoint	Iteration: 100	...
///
/// Source:  Megatron-LM, training.py, compute_throughputs_and_append_to_progress_log

#include <cstdint>
#include <filesystem>
#include <string>

namespace mh {

/// The work of a run since its step 0, in all of its starts.
struct RunWork {
  int64_t step = 0;
  double flops = 0;
  int64_t tokens = 0;
};

/// A line that cannot be written is left out: no run ends for its log.
class ProgressLog {
public:
  /// `begin`: what was done before this start. Writes the line of the start.
  ProgressLog(const std::filesystem::path& folder, int64_t ranks, const RunWork& begin);

  /// A checkpoint is there: the throughput of each rank since this start, and since the first start
  /// on so many ranks that no other number followed.
  void saved(const RunWork& done) const;

private:
  void append(const std::string& text, double now) const;

  std::filesystem::path file_;
  int64_t ranks_;
  double begin_, flops_;                 ///< time and FLOPs when this start began
  double first_begin_, first_flops_ = 0; ///< when the first on as many ranks began
};

} // namespace mh
