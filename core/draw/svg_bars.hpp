#pragma once
/// Bars of parts as an SVG picture, readable on light and on dark pages.

#include <cstddef>
#include <string>
#include <vector>

namespace mh {

/// One bar: a value for each of the picture's parts.
struct BarRow {
  std::string name;
  std::vector<double> values;
  std::string text; ///< behind the bar
};

struct Bars {
  std::string title;
  std::vector<std::string> parts; ///< at most 6; each has a colour, the legend names them
  std::vector<BarRow> rows;
  std::string unit;
  double limit = 0;       ///< a line across the bars; 0: none
  std::string limit_text; ///< the limit in words
};

/// A complete SVG document: bars under one another, on one scale. Each part says what it is when a
/// pointer rests on it.
[[nodiscard]] std::string svg_bars(const Bars& bars);

} // namespace mh
