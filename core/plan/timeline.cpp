#include "core/plan/timeline.hpp"

#include "core/draw/svg.hpp"

#include <algorithm>
#include <cmath>

namespace mh {

namespace {

using Op = Instruction::Op;

enum class PassKind : uint8_t { forward, backward, weights };

PassKind kind_of(Op op) {
  return op == Op::forward           ? PassKind::forward
         : op == Op::backward_weight ? PassKind::weights
                                     : PassKind::backward;
}

char letter_of(const Instruction& what) {
  const char offset = static_cast<char>(what.microbatch % 26);
  switch (kind_of(what.op)) {
  case PassKind::forward:
    return static_cast<char>('a' + offset);
  case PassKind::backward:
    return static_cast<char>('A' + offset);
  case PassKind::weights:
    break;
  }
  return '+';
}

Paint paint_of(PassKind kind) {
  return kind == PassKind::forward    ? Paint::cyan
         : kind == PassKind::backward ? Paint::yellow
                                      : Paint::green;
}

double shortest_pass(const Timeline& timeline) {
  double shortest = timeline.length;
  for (const auto& stage : timeline.stages) {
    for (const auto& pass : stage) {
      shortest = std::min(shortest, pass.end - pass.begin);
    }
  }
  return shortest;
}

/// Digits of the longest number of a microbatch.
double digits_of_microbatches(const Timeline& timeline) {
  size_t digits = 1;
  for (const auto& stage : timeline.stages) {
    for (const auto& pass : stage) {
      digits = std::max(digits, std::to_string(pass.what.microbatch).size());
    }
  }
  return static_cast<double>(digits);
}

} // namespace

std::string timeline_rows(const Timeline& timeline, const Terminal& terminal) {
  constexpr int kLabel = 10;
  const double room = std::max(terminal.width, 60) - kLabel;
  // Three cells for the shortest pass where there is room, else what there is, at least one.
  const double scale = std::min(3 / shortest_pass(timeline), room / timeline.length);
  if (scale * shortest_pass(timeline) < 0.999) {
    return "";
  }
  const auto cell = [&](double time) { return static_cast<size_t>(std::lround(time * scale)); };
  std::string text;
  for (size_t stage = 0; stage < timeline.stages.size(); ++stage) {
    std::string row = svg::format("stage %-4zu", stage);
    size_t at = 0;
    for (const auto& pass : timeline.stages[stage]) {
      const size_t begin = std::max(at, cell(pass.begin)), end = cell(pass.end);
      row += terminal.paint(Paint::dim, std::string(begin - at, '.'));
      if (end > begin) {
        std::string cells(end - begin, '-');
        cells[0] = letter_of(pass.what);
        row += terminal.paint(paint_of(kind_of(pass.what.op)), cells);
      }
      at = std::max(begin, end);
    }
    row += terminal.paint(Paint::dim, std::string(cell(timeline.length) - at, '.'));
    text += row + "\n";
  }
  return text;
}

std::string timeline_svg(const std::string& title, const Timeline& timeline) {
  constexpr int kLeft = 70, kTop = 64, kRow = 26, kBox = 22, kRight = 16;
  constexpr double kDigit = 8; // pixels of a digit, and what it needs around it
  // A number has room in the shortest pass, unless the picture would be too wide.
  const double number = std::max(18.0, kDigit * digits_of_microbatches(timeline));
  const double scale = std::min(number / shortest_pass(timeline), 2000 / timeline.length);
  const int width = kLeft + static_cast<int>(std::ceil(timeline.length * scale)) + kRight;
  const int height = kTop + kRow * static_cast<int>(timeline.stages.size()) + kRight;
  std::string text = svg::document(title, std::max(width, 420), height) +
                     svg::text_at(kLeft, 26, "head", "start", title);
  int x = kLeft;
  for (const auto& [kind, name] :
       {std::pair(PassKind::forward, "forward"),
        std::pair(PassKind::backward, "backward"),
        std::pair(PassKind::weights, "weight gradients")}) {
    text +=
        svg::format(
            R"(<rect x="%d" y="38" width="12" height="12" class="f%d"/>)", x, static_cast<int>(kind)
        ) +
        "\n" + svg::text_at(x + 17, 48, "label", "start", name);
    x += 90;
  }
  for (size_t stage = 0; stage < timeline.stages.size(); ++stage) {
    const int y = kTop + kRow * static_cast<int>(stage);
    text += svg::text_at(kLeft - 8, y + 15, "label", "end", "stage " + std::to_string(stage));
    for (const auto& pass : timeline.stages[stage]) {
      const double left = kLeft + pass.begin * scale, long_ = (pass.end - pass.begin) * scale;
      text +=
          svg::format(
              R"(<rect x="%.1f" y="%d" width="%.1f" height="%d" rx="2" class="f%d" opacity="%.2f"/>)",
              left + 0.5,
              y,
              std::max(long_ - 1, 0.5),
              kBox,
              static_cast<int>(kind_of(pass.what.op)),
              pass.what.chunk % 2 == 0 ? 1.0 : 0.7
          ) +
          "\n";
      const std::string label = std::to_string(pass.what.microbatch);
      if (long_ >= kDigit * static_cast<double>(label.size())) {
        text += svg::text_at(left + long_ / 2, y + 15, "on", "middle", label);
      }
    }
  }
  return text + "</svg>\n";
}

} // namespace mh
