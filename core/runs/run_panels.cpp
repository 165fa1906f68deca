#include "core/runs/run_panels.hpp"

#include <array>
#include <utility>

namespace mh {

Paint run_paint(size_t run) {
  constexpr std::array kPaints{
      Paint::cyan, Paint::yellow, Paint::green, Paint::magenta, Paint::red, Paint::blue};
  return kPaints[run % kPaints.size()];
}

Panel panel_of(
    const Measure& measure, const std::vector<RunMetrics>& runs, int64_t window, bool letters
) {
  Panel panel{.chart = {.title = measure.title, .x_label = "step"}, .series = {}};
  const auto add = [&](Series series, size_t run) {
    series.paint = run_paint(run);
    if (letters && runs.size() > 1) {
      series.letter = static_cast<char>((series.marks ? 'A' : 'a') + static_cast<int>(run % 26));
    }
    if (series.size() > 0) {
      panel.series.push_back(std::move(series));
    }
  };
  for (size_t i = 0; i < runs.size(); ++i) {
    add(smoothed(series_of(measure, runs[i]), window), i);
    if (!measure.loss.empty()) {
      add(validation_of(measure, runs[i]), i);
    }
  }
  return panel;
}

} // namespace mh
