#include "core/draw/svg_chart.hpp"

#include "core/draw/svg.hpp"
#include "core/draw/ticks.hpp"

#include <array>
#include <utility>

namespace mh {

namespace {

constexpr int kPanelWidth = 480, kPanelHeight = 270, kHead = 64;
constexpr int kLeft = 64, kRight = 14, kTop = 34, kBottom = 40;
constexpr int kPlotWidth = kPanelWidth - kLeft - kRight;
constexpr int kPlotHeight = kPanelHeight - kTop - kBottom;
constexpr size_t kPoints = 500; // points of a line at most; more are drawn as means

using svg::escaped;
using svg::format;
using svg::text_at;

int colour(Paint paint) {
  constexpr std::array kPalette{
      Paint::cyan, Paint::yellow, Paint::green, Paint::magenta, Paint::red};
  size_t i = 0;
  while (i < kPalette.size() && kPalette[i] != paint) {
    ++i;
  }
  return static_cast<int>(i);
}

void to_logarithms(std::vector<double>& values) {
  for (double& value : values) {
    value = std::log10(value);
  }
}

/// The panel with the places at which its points are drawn.
Panel drawn(Panel panel) {
  for (Series& series : panel.series) {
    if (panel.chart.log_x) {
      to_logarithms(series.x);
    }
    if (panel.chart.log_y) {
      to_logarithms(series.y);
    }
  }
  return panel;
}

/// The finite points; of too many, the means of equal groups of neighbours.
std::vector<std::pair<double, double>> points(const Series& series) {
  std::vector<std::pair<double, double>> all, means;
  for (size_t i = 0; i < series.size(); ++i) {
    if (series.finite(i)) {
      all.emplace_back(series.x[i], series.y[i]);
    }
  }
  const size_t group = series.marks ? 1 : (all.size() + kPoints - 1) / kPoints;
  if (group <= 1) {
    return all;
  }
  for (size_t begin = 0; begin < all.size(); begin += group) {
    const size_t end = std::min(begin + group, all.size());
    double x = 0, y = 0;
    for (size_t i = begin; i < end; ++i) {
      x += all[i].first / static_cast<double>(end - begin);
      y += all[i].second / static_cast<double>(end - begin);
    }
    means.emplace_back(x, y);
  }
  return means;
}

std::string swatch(const Series& series, int x, int y) {
  return series.marks
             ? format(
                   R"(<circle cx="%d" cy="%d" r="4" class="mark c%d"/>)",
                   x + 10,
                   y - 4,
                   colour(series.paint)
               ) + "\n"
             : format(R"(<path d="M%d %dh20" class="line c%d"/>)", x, y - 4, colour(series.paint)) +
                   "\n";
}

constexpr int kLegendRow = 18;

/// Each name once, over all panels, in rows of this width; `ret_rows` says how many.
std::string legend(const std::vector<Panel>& panels, int y, int width, int& ret_rows) {
  std::vector<std::string> seen;
  std::string text;
  int x = kLeft;
  ret_rows = 1;
  for (const auto& panel : panels) {
    for (const auto& series : panel.series) {
      if (std::find(seen.begin(), seen.end(), series.name) == seen.end()) {
        seen.push_back(series.name);
        const int taken = 50 + 7 * cells(series.name);
        if (x + taken > width && x > kLeft) {
          x = kLeft;
          ++ret_rows;
        }
        const int row = y + (ret_rows - 1) * kLegendRow;
        text += swatch(series, x, row) + text_at(x + 26, row, "label", "start", series.name);
        x += taken;
      }
    }
  }
  return seen.size() > 1 ? text : "";
}

/// A heading, cut where it would be wider than `width`.
std::string heading(std::string text, int width) {
  constexpr int kLetter = 9; // about as wide
  if (kLetter * cells(text) <= width) {
    return text;
  }
  while (!text.empty() && kLetter * (cells(text) + 3) > width) {
    while (text.size() > 1 && (static_cast<unsigned char>(text.back()) & 0xC0U) == 0x80U) {
      text.pop_back(); // within a character
    }
    text.pop_back();
  }
  return text + "...";
}

class Plot {
public:
  Plot(const Panel& given, int left, int top)
      : left_(left + kLeft)
      , top_(top + kTop) {
    const Panel panel = drawn(given);
    for (const auto& series : panel.series) {
      for (const auto& [x, y] : points(series)) {
        x_.include(x);
        y_.include(y);
      }
    }
    text_ = text_at(left_, top_ - 12, "title", "start", panel.chart.title);
    if (x_.high < x_.low) {
      text_ += text_at(left_, top_ + 20, "label", "start", "no points");
      return;
    }
    if (x_.high == x_.low) {
      x_ = x_.padded();
    }
    if (panel.chart.from_zero) {
      y_.include(0);
    }
    y_ = y_.padded();
    draw_axes(panel.chart);
    for (const auto& series : panel.series) {
      draw(series);
    }
  }

  [[nodiscard]] const std::string& text() const { return text_; }

private:
  [[nodiscard]] double x(double value) const {
    return left_ + (value - x_.low) / (x_.high - x_.low) * kPlotWidth;
  }

  [[nodiscard]] double y(double value) const {
    return top_ + (y_.high - value) / (y_.high - y_.low) * kPlotHeight;
  }

  void draw_axes(const Chart& chart) {
    for (const auto& [at, label] : chart.log_y ? log_ticks(y_) : ticks(y_, 5)) {
      text_ += format(R"(<path d="M%d %.1fh%d" class="grid"/>)", left_, y(at), kPlotWidth) + "\n" +
               text_at(left_ - 6, y(at) + 4, "label", "end", label);
    }
    for (const auto& [at, label] : chart.log_x ? log_ticks(x_) : ticks(x_, 6)) {
      text_ += text_at(x(at), top_ + kPlotHeight + 16, "label", "middle", label);
    }
    text_ += text_at(left_ + kPlotWidth, top_ + kPlotHeight + 32, "label", "end", chart.x_label);
  }

  void draw(const Series& series) {
    std::string path;
    for (const auto& [at, value] : points(series)) {
      if (series.marks) {
        text_ += format(
                     R"(<circle cx="%.1f" cy="%.1f" r="3" class="mark c%d"/>)",
                     x(at),
                     y(value),
                     colour(series.paint)
                 ) +
                 "\n";
      } else {
        path += format("%c%.1f %.1f", path.empty() ? 'M' : 'L', x(at), y(value));
      }
    }
    if (!path.empty()) {
      text_ += "<path d=\"" + path + format(R"(" class="line c%d"/>)", colour(series.paint)) + "\n";
    }
  }

  int left_, top_;
  AxisRange x_, y_;
  std::string text_;
};

} // namespace

std::string svg_charts(const std::string& title, const std::vector<Panel>& panels) {
  const int columns = panels.size() > 1 ? 2 : 1;
  const int rows = (static_cast<int>(panels.size()) + columns - 1) / columns;
  const int width = columns * kPanelWidth;
  int legend_rows = 1;
  const std::string names = legend(panels, 52, width, legend_rows);
  const int head = kHead + (names.empty() ? 0 : (legend_rows - 1) * kLegendRow);
  std::string text = svg::document(title, width, head + rows * kPanelHeight) +
                     text_at(kLeft, 28, "head", "start", heading(title, width - kLeft)) + names;
  for (size_t i = 0; i < panels.size(); ++i) {
    const int column = static_cast<int>(i) % columns, row = static_cast<int>(i) / columns;
    text += Plot(panels[i], column * kPanelWidth, head + row * kPanelHeight).text();
  }
  return text + "</svg>\n";
}

} // namespace mh
