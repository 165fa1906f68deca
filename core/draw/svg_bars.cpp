#include "core/draw/svg_bars.hpp"

#include "core/draw/svg.hpp"
#include "core/draw/terminal.hpp"

#include <algorithm>
#include <numeric>

namespace mh {

namespace {

/// Pixels that text of these letters takes, about.
int text_width(const std::string& text) {
  return 7 * cells(text);
}

std::string swatches(const Bars& bars, int x, int y) {
  std::string text;
  for (size_t part = 0; bars.parts.size() > 1 && part < bars.parts.size(); ++part) {
    text += svg::format(
                R"(<rect x="%d" y="%d" width="12" height="12" class="f%zu"/>)", x, y - 10, part
            ) +
            "\n" + svg::text_at(x + 17, y, "label", "start", bars.parts[part]);
    x += 36 + text_width(bars.parts[part]);
  }
  return text;
}

} // namespace

std::string svg_bars(const Bars& bars) {
  constexpr int kRow = 24, kBox = 16, kPlot = 560, kGap = 10;
  const int top = bars.parts.size() > 1 ? 66 : 38; // below a legend
  int left = 0, right = 0;
  double most = bars.limit;
  for (const BarRow& row : bars.rows) {
    left = std::max(left, text_width(row.name) + 2 * kGap);
    right = std::max(right, text_width(row.text) + 2 * kGap);
    most = std::max(most, std::accumulate(row.values.begin(), row.values.end(), 0.0));
  }
  const double scale = most > 0 ? kPlot / most : 0;
  const int bottom = top + kRow * static_cast<int>(bars.rows.size());
  std::string text =
      svg::document(bars.title, left + kPlot + right, bottom + (bars.limit > 0 ? 24 : 8)) +
      svg::text_at(left, 22, "title", "start", bars.title) + swatches(bars, left, 48);
  int y = top;
  for (const BarRow& row : bars.rows) {
    text += svg::text_at(left - kGap, y + 13, "label", "end", row.name);
    double x = left;
    for (size_t part = 0; part < row.values.size(); ++part) {
      const double width = row.values[part] * scale;
      text += svg::format(
                  R"(<rect x="%.1f" y="%d" width="%.1f" height="%d" class="f%zu"><title>)",
                  x,
                  y,
                  width,
                  kBox,
                  part
              ) +
              svg::escaped(
                  (bars.parts.size() == 1 ? row.name : bars.parts[part]) +
                  svg::format(" %.4g ", row.values[part]) + bars.unit
              ) +
              "</title></rect>\n";
      x += width;
    }
    text += svg::text_at(x + kGap, y + 13, "label", "start", row.text);
    y += kRow;
  }
  if (bars.limit > 0) {
    const double x = left + bars.limit * scale;
    text += svg::format(R"(<path d="M%.1f %dV%d" class="line c5"/>)", x, top - 6, bottom) + "\n" +
            svg::text_at(x, bottom + 14, "label", "middle", bars.limit_text);
  }
  return text + "</svg>\n";
}

} // namespace mh
