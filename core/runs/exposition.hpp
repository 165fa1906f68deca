#pragma once
/// The state of runs, as Prometheus reads it; docs/clusters.md names the metrics.

#include "core/runs/run_status.hpp"

#include <string>
#include <vector>

namespace mh {

/// One family of samples per metric, one sample per run that has a reading of it.
///
/// Source:  Prometheus, "Exposition formats", text-based format 0.0.4
[[nodiscard]] std::string exposition(const std::vector<RunStatus>& runs);

} // namespace mh
