#pragma once
/// Panels of curves, for plots of runs and for pages of sweeps.

#include "core/draw/svg_chart.hpp"
#include "core/runs/run_metrics.hpp"

#include <cstdint>
#include <vector>

namespace mh {

/// A measure over the steps of each run, a colour for each; validation losses as marks. With
/// `letters` lines carry letters, for places without colours.
[[nodiscard]] Panel
panel_of(const Measure& measure, const std::vector<RunMetrics>& runs, int64_t window, bool letters);

/// The colour of the i-th of several runs.
[[nodiscard]] Paint run_paint(size_t run);

} // namespace mh
