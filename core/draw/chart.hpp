#pragma once
/// A line chart in braille, two by four dots to a cell.

#include "core/draw/terminal.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

namespace mh {

struct Series {
  std::string name;
  std::vector<double> x, y; ///< points that are not finite are left out
  bool marks = false;       ///< single points as "●" instead of a line through columns' means
  Paint paint = Paint::cyan;
  std::string letter{}; ///< drawn on the line, to tell it from others where there are no colours

  [[nodiscard]] size_t size() const { return std::min(x.size(), y.size()); }

  [[nodiscard]] bool finite(size_t i) const { return std::isfinite(x[i]) && std::isfinite(y[i]); }
};

struct Chart {
  std::string title;
  std::string x_label;
  bool from_zero = false; ///< the y axis shows zero
  bool log_x = false;     ///< pictures have a logarithmic x axis, without points at 0 and below
  bool log_y = false;     ///< and y axis
  int width = 78;         ///< columns of the whole chart
  int height = 14;        ///< lines of the plot itself; title, axis and legend come on top
};

/// The chart's lines, each with its end: title, plot with labels on the left, x axis, legend.
/// If fewer than two points are finite, one line says so.
[[nodiscard]] std::string
line_chart(const Chart& chart, const std::vector<Series>& series, const Terminal& terminal);

} // namespace mh
