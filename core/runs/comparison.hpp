#pragma once
/// Two runs side by side: where their losses differ, and what each took.

#include "core/recipe/commands.hpp"
#include "core/records/goodput.hpp"
#include "core/runs/run_metrics.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// Losses of both runs at the same place, each the mean since the place before.
struct ComparedRow {
  int64_t at = 0;
  double left = 0, right = 0;
};

/// What a run is measured by as a whole.
struct RunTotals {
  explicit RunTotals(const RunMetrics& run);

  int64_t steps;
  double median_seconds = 0, tokens_per_second = 0;
  int64_t memory = 0; ///< peak, in bytes
  std::optional<Goodput> goodput{};
};

struct Comparison {
  /// Throws:  mh::Error where a run's recipe cannot be read
  Comparison(const RunMetrics& left, const RunMetrics& right);

  std::vector<std::string> names;
  std::vector<Difference> recipe;
  std::vector<ComparedRow> by_step,
      by_tokens; ///< by_tokens: where the runs' steps differ in tokens
  std::vector<ComparedRow> validation;
  std::vector<RunTotals> totals;
  int64_t first_common; ///< step
  /// The common step at which the losses first differ in any bit; 0 if none does, -1 without a
  /// common step.
  int64_t differs_at;
};

} // namespace mh
