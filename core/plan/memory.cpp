#include "core/plan/memory.hpp"

#include "core/base/number_text.hpp"
#include "core/draw/columns.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>

namespace mh {

std::string gib(int64_t bytes) {
  const double value = static_cast<double>(bytes) / 1073741824.0;
  return value >= 100   ? formatted("%.0f", value)
         : value >= 0.1 ? formatted("%.1f", value)
                        : formatted("%.3f", value);
}

std::string fit_text(Fit fit) {
  return fit == Fit::too_much ? "too much" : fit == Fit::tight ? "tight" : "";
}

std::string behind(const char* separator, const std::string& text) {
  return text.empty() ? "" : separator + text;
}

std::string reserved_text(const Plan& plan) {
  return plan.host ? "the program and its libraries"
                   : "what is no tensor's, by the machine's row: context, communication buffers, "
                     "fragmentation";
}

int64_t copied_bytes(const Plan& plan, const StagePlan& stage, const Recipe& recipe) {
  if (!recipe.checkpoint.async || recipe.checkpoint.interval == 0) {
    return 0;
  }
  const int64_t weights = stage.own_masters ? stage.parameters : 0;
  const int64_t copies = plan.shape.dp; // each slice that several ranks hold is copied by one
  return recipe.parallel.zero > 0 ? stage.state + weights / copies
                                  : (stage.state + weights) / copies;
}

std::string copy_note(const Plan& plan, const Recipe& recipe) {
  int64_t most = 0;
  for (const StagePlan& stage : plan.stages) {
    most = std::max(most, copied_bytes(plan, stage, recipe));
  }
  return most == 0 ? ""
                   : "from the first save on, the copy that is written in the background takes " +
                         gib(most) + " GiB of host memory on a rank (checkpoint.async)";
}

Paint fit_paint(Fit fit) {
  return fit == Fit::too_much ? Paint::red : fit == Fit::tight ? Paint::yellow : Paint::green;
}

std::vector<size_t> shown_stages(const Plan& plan) {
  constexpr size_t kAll = 16;
  std::vector<size_t> shown;
  const size_t count = plan.stages.size();
  size_t fullest = 0;
  for (size_t i = 0; i < count; ++i) {
    fullest = plan.stages[i].total() > plan.stages[fullest].total() ? i : fullest;
  }
  for (size_t i = 0; i < count; ++i) {
    if (count <= kAll || i < 3 || i + 2 >= count || i == fullest) {
      shown.push_back(i);
    }
  }
  return shown;
}

namespace {

constexpr int kBar = 20;

/// "████████▒▒            52%, tight": tensors, and what is reserved.
std::string share_text(const StagePlan& stage, int64_t capacity, const Terminal& terminal) {
  const Fit fit = fit_of(stage.total(), capacity);
  if (fit == Fit::unknown) {
    return "";
  }
  const auto share_of = [capacity](int64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(capacity);
  };
  const auto cells_of = [&](int64_t bytes) {
    return static_cast<int>(std::lround(kBar * std::min(1.0, share_of(bytes))));
  };
  const int all = cells_of(stage.total());
  const int reserved = std::min(all, cells_of(stage.reserved));
  std::string text;
  for (int cell = 0; cell < kBar; ++cell) {
    text += cell < all - reserved ? "█" : cell < all ? "▒" : " ";
  }
  return terminal.paint(
      fit_paint(fit),
      text + formatted(" %3.0f%%", 100 * share_of(stage.total())) + behind(", ", fit_text(fit))
  );
}

/// The bars stand in the table's last column, or where that is too wide below the table.
struct TableStyle {
  bool brief, bars;
};

std::vector<std::string>
stage_lines(const Plan& plan, const TableStyle& style, const Terminal& terminal) {
  TextRow head{"stage", "layers"};
  for (const auto& part : kMemoryParts) {
    head.emplace_back(style.brief ? part.brief : part.name);
  }
  head.emplace_back("total");
  if (style.bars) {
    head.emplace_back("");
  }
  std::vector<TextRow> rows{head};
  for (const size_t i : shown_stages(plan)) {
    const StagePlan& stage = plan.stages[i];
    TextRow& row = rows.emplace_back(TextRow{std::to_string(i), stage.layers});
    for (const auto& part : kMemoryParts) {
      row.push_back(gib(stage.*part.bytes));
    }
    row.push_back(gib(stage.total()));
    if (style.bars) {
      row.push_back(share_text(stage, plan.capacity, terminal));
    }
  }
  std::istringstream text(columns(rows, terminal));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    lines.push_back("  " + line);
  }
  return lines;
}

} // namespace

std::string memory_table(const Plan& plan, const Terminal& terminal) {
  std::vector<std::string> lines;
  bool bars = true;
  for (const TableStyle style : {TableStyle{false, true}, {false, false}, {true, false}}) {
    bars = style.bars;
    lines = stage_lines(plan, style, terminal);
    const bool fits = std::all_of(lines.begin(), lines.end(), [&](const std::string& line) {
      return cells(line) <= terminal.width;
    });
    if (fits || !terminal.interactive) { // a file has room for all
      break;
    }
  }
  std::string text = "memory of a rank in GiB" +
                     (plan.capacity > 0 ? ", which has " + gib(plan.capacity) : std::string()) +
                     "\n" + lines.front() + "\n";
  const auto shown = shown_stages(plan);
  for (size_t i = 0; i < shown.size(); ++i) {
    if (i > 0 && shown[i] > shown[i - 1] + 1) {
      text += formatted("    ...  (%zu stages that take no more)\n", shown[i] - shown[i - 1] - 1);
    }
    text += lines[i + 1] + "\n";
  }
  if (!bars && plan.capacity > 0) {
    text += "\n";
    for (const size_t i : shown) {
      text += formatted("  stage %-4zu ", i) + share_text(plan.stages[i], plan.capacity, terminal) +
              "\n";
    }
  }
  const bool reserves = plan.stages.front().reserved > 0;
  return text + (reserves ? "  reserved (▒ in the bars): " + reserved_text(plan) + "\n" : "");
}

} // namespace mh
