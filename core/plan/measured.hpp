#pragma once
/// The measurements of a folder's run, in the form of a plan.

#include "core/runs/run_metrics.hpp"

#include <cstdint>

namespace mh {

/// Medians over the steps that as many ranks did as the last one, without those that warm up.
struct Measured {
  std::string folder;
  int64_t first = 0, last = 0; ///< steps
  int64_t ranks = 0;           ///< 0: unknown
  double seconds = 0;          ///< duration of a step
  double tokens_per_second = 0;
  int64_t memory = 0;  ///< peak bytes of rank 0; 0: unknown
  int64_t tensors = 0; ///< likewise, of its tensors
};

[[nodiscard]] Measured measured_of(const RunMetrics& run);

} // namespace mh
