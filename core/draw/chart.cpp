#include "core/draw/chart.hpp"

#include "core/draw/ticks.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace mh {

namespace {

std::string utf8(uint32_t code) {
  return {
      static_cast<char>(0xE0 | code >> 12),
      static_cast<char>(0x80 | (code >> 6 & 63)),
      static_cast<char>(0x80 | (code & 63))};
}

/// The plot's cells.
class Canvas {
public:
  Canvas(int columns, int rows)
      : columns_(columns)
      , rows_(rows)
      , cells_(static_cast<size_t>(columns * rows)) {}

  [[nodiscard]] int dots_wide() const { return columns_ * 2; }

  [[nodiscard]] int dots_high() const { return rows_ * 4; }

  void dot(int x, int y, Paint paint) {
    static constexpr uint8_t kBits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    Cell& cell = at(x / 2, y / 4);
    cell.dots |= kBits[y % 4][x % 2];
    cell.paint = paint;
  }

  /// A whole cell: "●", or a letter.
  void mark(int x, int y, Paint paint, const std::string& sign) {
    at(x / 2, y / 4).mark = sign;
    at(x / 2, y / 4).paint = paint;
  }

  void line(int x0, int y0, int x1, int y1, Paint paint) {
    const int steps = std::max({std::abs(x1 - x0), std::abs(y1 - y0), 1});
    for (int i = 0; i <= steps; ++i) {
      const double share = static_cast<double>(i) / steps;
      dot(static_cast<int>(std::lround(x0 + share * (x1 - x0))),
          static_cast<int>(std::lround(y0 + share * (y1 - y0))),
          paint);
    }
  }

  [[nodiscard]] std::string row(int row, const Terminal& terminal) const {
    std::string text;
    for (int column = 0; column < columns_; ++column) {
      const Cell& cell = cells_[static_cast<size_t>(row * columns_ + column)];
      if (!cell.mark.empty()) {
        text += terminal.paint(cell.paint, cell.mark);
      } else if (cell.dots != 0) {
        text += terminal.paint(cell.paint, utf8(0x2800 + cell.dots));
      } else {
        text += ' ';
      }
    }
    while (!text.empty() && text.back() == ' ') {
      text.pop_back();
    }
    return text;
  }

private:
  struct Cell {
    uint8_t dots = 0;
    std::string mark;
    Paint paint = Paint::plain;
  };

  Cell& at(int column, int row) { return cells_[static_cast<size_t>(row * columns_ + column)]; }

  int columns_, rows_;
  std::vector<Cell> cells_;
};

constexpr int kBetweenLetters = 24; // dots

int scale(double value, const AxisRange& range, int dots) {
  return static_cast<int>(std::lround((value - range.low) / (range.high - range.low) * (dots - 1)));
}

/// A line through the mean of the points of each column of dots.
void draw_line(Canvas& canvas, const Series& series, const AxisRange& x, const AxisRange& y) {
  std::vector<std::pair<double, int>> columns(static_cast<size_t>(canvas.dots_wide()));
  for (size_t i = 0; i < series.size(); ++i) {
    if (series.finite(i)) {
      auto& [sum, count] = columns[static_cast<size_t>(scale(series.x[i], x, canvas.dots_wide()))];
      sum += series.y[i];
      ++count;
    }
  }
  int last_x = -1, last_y = 0, lettered = 0;
  std::vector<std::pair<int, int>> letters;
  for (int at_x = 0; at_x < canvas.dots_wide(); ++at_x) {
    const auto& [sum, count] = columns[static_cast<size_t>(at_x)];
    if (count == 0) {
      continue;
    }
    const int at_y = canvas.dots_high() - 1 - scale(sum / count, y, canvas.dots_high());
    if (last_x < 0) {
      canvas.dot(at_x, at_y, series.paint);
    } else {
      canvas.line(last_x, last_y, at_x, at_y, series.paint);
    }
    if (!series.letter.empty() && at_x - lettered >= kBetweenLetters) {
      lettered = at_x;
      letters.emplace_back(at_x, at_y);
    }
    last_x = at_x;
    last_y = at_y;
  }
  for (const auto& [at_x, at_y] : letters) {
    canvas.mark(at_x, at_y, series.paint, series.letter);
  }
}

void draw_marks(Canvas& canvas, const Series& series, const AxisRange& x, const AxisRange& y) {
  for (size_t i = 0; i < series.size(); ++i) {
    if (series.finite(i)) {
      canvas.mark(
          scale(series.x[i], x, canvas.dots_wide()),
          canvas.dots_high() - 1 - scale(series.y[i], y, canvas.dots_high()),
          series.paint,
          series.letter.empty() ? "●" : series.letter
      );
    }
  }
}

std::string x_axis(const AxisRange& x, int columns, const std::string& x_label) {
  std::string labels(static_cast<size_t>(columns), ' ');
  for (const auto& [at, text] : ticks(x, columns / 14)) {
    const int middle = scale(at, x, columns);
    const int start = std::clamp(
        middle - static_cast<int>(text.size()) / 2,
        0,
        std::max(0, columns - static_cast<int>(text.size()))
    );
    labels.replace(static_cast<size_t>(start), text.size(), text);
  }
  labels.erase(labels.find_last_not_of(' ') + 1);
  return labels + "  " + x_label;
}

} // namespace

std::string
line_chart(const Chart& chart, const std::vector<Series>& series, const Terminal& terminal) {
  AxisRange x, y;
  size_t points = 0;
  for (const Series& one : series) {
    for (size_t i = 0; i < one.size(); ++i) {
      if (one.finite(i)) {
        x.include(one.x[i]);
        y.include(one.y[i]);
        ++points;
      }
    }
  }
  if (points < 2 || x.high <= x.low) {
    return chart.title + ": not enough points for a curve\n";
  }
  y = y.padded();
  std::vector<std::string> labels(static_cast<size_t>(chart.height));
  size_t margin = 0;
  for (const auto& [at, text] : ticks(y, chart.height / 2)) {
    labels[static_cast<size_t>(chart.height - 1 - scale(at, y, chart.height))] = text;
    margin = std::max(margin, text.size());
  }
  const int tail = cells(chart.x_label) + 2;
  Canvas canvas(std::max(10, chart.width - static_cast<int>(margin) - 2 - tail), chart.height);
  for (const Series& one : series) {
    if (one.marks) {
      draw_marks(canvas, one, x, y);
    } else {
      draw_line(canvas, one, x, y);
    }
  }

  std::string text = std::string(margin + 2, ' ') + terminal.paint(Paint::bold, chart.title) + "\n";
  for (int row = 0; row < chart.height; ++row) {
    const std::string& tick = labels[static_cast<size_t>(row)];
    text += std::string(margin - tick.size(), ' ') + tick + (tick.empty() ? " │" : " ┤") +
            canvas.row(row, terminal) + "\n";
  }
  text += std::string(margin + 1, ' ') + "└";
  for (int i = 0; i < canvas.dots_wide() / 2; ++i) {
    text += "─";
  }
  text +=
      "\n" + std::string(margin + 2, ' ') + x_axis(x, canvas.dots_wide() / 2, chart.x_label) + "\n";
  if (series.size() > 1) {
    text += std::string(margin + 2, ' ');
    for (const Series& one : series) {
      const std::string sign = one.marks ? (one.letter.empty() ? "●" : one.letter)
                                         : (one.letter.empty() ? "──" : "─" + one.letter + "─");
      text += terminal.paint(one.paint, sign) + " " + one.name + "   ";
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += "\n";
  }
  return text;
}

} // namespace mh
