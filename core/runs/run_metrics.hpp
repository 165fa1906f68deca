#pragma once
/// The measurements of a run, read back from its folder for plots and comparisons.

#include "core/draw/chart.hpp"
#include "core/records/metrics.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace mh {

struct RunMetrics {
  std::string name; ///< the run folder as the user named it
  std::filesystem::path folder;
  std::vector<StepRecord> steps;
  std::vector<EvalRecord> evaluations;
  uint64_t file = 0, read = 0; ///< state of `read_on`: a file's number, and its bytes read

  /// Tokens that step `i` of `steps` trained on.
  [[nodiscard]] int64_t tokens_of(size_t i) const;
  [[nodiscard]] double tokens_per_second(size_t i) const;
};

/// Throws:  mh::Error (exit code 5) if `folder` is no run folder, or no step was done in it
[[nodiscard]] RunMetrics read_run(const std::string& folder);

/// The metrics of a run that may have done no step yet.
[[nodiscard]] RunMetrics read_run_so_far(const std::string& folder);

/// A run folder of which nothing was read yet.
///
/// Throws:  as `read_run`, if it is none
[[nodiscard]] RunMetrics named_run(const std::string& folder);

/// Adds the metrics that were written since; all are read again where a restart has cut them.
void read_on(RunMetrics& run);

/// Something that can be drawn over the steps.
struct Measure {
  std::string name;  ///< "gradient_norm", as --metric names it
  std::string title; ///< "gradient norm"
  std::function<double(const RunMetrics&, size_t step)> value; ///< NaN where there is none
  std::string loss{}; ///< the loss that it is, which has validation values too
};

/// loss, lr, gradient_norm, tokens_per_second, seconds, memory, and every loss by its name.
[[nodiscard]] std::vector<Measure> measures(const std::vector<RunMetrics>& runs);

/// The measure over the steps of a run.
[[nodiscard]] Series series_of(const Measure& measure, const RunMetrics& run);
/// A loss in the run's evaluations, as marks.
[[nodiscard]] Series validation_of(const Measure& measure, const RunMetrics& run);

/// Each value as the mean of the `window` around it.
[[nodiscard]] Series smoothed(Series series, int64_t window);

} // namespace mh
