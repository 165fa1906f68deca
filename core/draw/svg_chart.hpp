#pragma once
/// Line charts as one SVG picture of small multiples, readable on light and on dark pages.

#include "core/draw/chart.hpp"

#include <string>
#include <vector>

namespace mh {

/// One chart with its lines; `chart.width` and `chart.height` are for terminals and not used.
struct Panel {
  Chart chart;
  std::vector<Series> series;
};

/// A complete SVG document: the panels in two columns, one legend of all names above them. The
/// series' paint says which colour of the palette they get; letters are not drawn.
[[nodiscard]] std::string svg_charts(const std::string& title, const std::vector<Panel>& panels);

} // namespace mh
