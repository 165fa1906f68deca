#include "core/runs/run_view.hpp"

#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/draw/columns.hpp"
#include "core/draw/page.hpp"
#include "core/draw/svg_bars.hpp"
#include "core/runs/run_panels.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <iterator>
#include <numeric>
#include <vector>

namespace mh {

namespace {

Paint paint_of(const RunStatus& run) {
  switch (run.state) {
  case RunState::starting:
    return Paint::yellow;
  case RunState::running:
    return run.is_silent() ? Paint::yellow : Paint::green;
  case RunState::finished:
    return Paint::plain;
  case RunState::stopped:
    return Paint::red;
  }
  return Paint::plain;
}

/// "120 of 200", "120" where it is not known how many there will be.
std::string steps_text(const RunStatus& run) {
  const std::string done = grouped(run.last() == nullptr ? 0 : run.last()->step);
  return run.iterations > 0 ? done + " of " + grouped(run.iterations) : done;
}

double share_done(const RunStatus& run) {
  return run.last() == nullptr
             ? 0
             : static_cast<double>(run.last()->step) / static_cast<double>(run.iterations);
}

std::string losses_text(const std::vector<LossValue>& losses) {
  std::vector<std::string> texts;
  for (const LossValue& loss : losses) {
    texts.push_back(formatted("%.4f (%s)", loss.value, loss.name.c_str()));
  }
  return join(texts);
}

std::string tokens_text(const RunStatus& run) {
  return grouped(std::llround(run.tokens_per_second));
}

std::string speed_text(const RunStatus& run) {
  std::string text =
      tokens_text(run) + " tokens/s, " + formatted("%.3g", run.step_seconds) + " s per step";
  const double waits = 100 * run.data_seconds / run.step_seconds;
  return waits >= 1 ? text + formatted(", %.0f%% of it waiting for data", waits) : text;
}

/// "running: process 4711 of node-3, 8 ranks".
std::string state_text(const RunStatus& run) {
  std::string text(state_name(run.state));
  if (run.goes_on() && run.owner) {
    text += ": process " + std::to_string(run.owner->process) + " of " + run.owner->host;
    if (run.last() != nullptr && run.last()->ranks > 1) {
      text += ", " + grouped(run.last()->ranks) + " ranks";
    }
  }
  return text;
}

/// A fact about a run, with its name.
struct RunFact {
  std::string name, text;
  Paint paint = Paint::plain;
};

std::vector<RunFact> facts_of(const RunStatus& run) {
  std::vector<RunFact> facts{{"step", steps_text(run)}};
  if (run.iterations > 0) {
    facts.back().text +=
        formatted("  %s %.0f%%", bar(share_done(run), 20).c_str(), 100 * share_done(run));
  }
  const auto add = [&](const char* name, const std::string& text) {
    facts.push_back({name, text});
  };
  if (const StepRecord* update = run.last_update()) {
    add("loss", losses_text(update->losses));
  }
  if (!run.metrics.evaluations.empty()) {
    const EvalRecord& newest = run.metrics.evaluations.back();
    add("validation", losses_text(newest.losses) + " at step " + grouped(newest.step));
  }
  if (run.last() != nullptr) {
    add("speed", speed_text(run));
  }
  if (const auto seconds = run.remaining()) {
    add("remaining", duration_text(*seconds));
  }
  if (run.since_step && run.last() != nullptr) {
    const bool is_late = run.state == RunState::running && run.is_silent();
    add("last step",
        duration_text(*run.since_step) + " ago" + (is_late ? ": far longer than a step" : ""));
    facts.back().paint = is_late ? Paint::yellow : Paint::plain;
  }
  if (run.last() != nullptr && run.last()->memory > 0) {
    add("memory", bytes_text(run.last()->memory) + " at most");
  }
  if (run.skipped > 0) {
    add("skipped", counted(run.skipped, "step"));
  }
  add("checkpoint",
      run.checkpoint                  ? "step " + grouped(*run.checkpoint)
      : !run.checkpoint_fault.empty() ? "cannot be read: " + terminal_text(run.checkpoint_fault)
      : run.unread_format.empty()
          ? "none yet"
          : terminal_text(run.unread_format) +
                " is a format that no plugin here reads: give --plugin FILE");
  if (run.goodput) {
    add("goodput", goodput_text(*run.goodput));
  }
  return facts;
}

/// The ranks that others wait for most, the busiest first; empty where there is one rank.
std::vector<TextRow> rank_rows(const RunStatus& run, size_t most) {
  if (!run.ranks || run.ranks->ranks.size() < 2 || most == 0) {
    return {};
  }
  const auto& ranks = run.ranks->ranks;
  std::vector<size_t> order(ranks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return ranks[a].typical.busy() > ranks[b].typical.busy();
  });
  TextRow head{"rank", "host"};
  for (size_t part = 0; part < kStepParts; ++part) {
    head.push_back(std::string(part_name(static_cast<StepPart>(part))) + ", ms");
  }
  std::vector<TextRow> rows{head};
  for (size_t i = 0; i < std::min(most, order.size()); ++i) {
    const RankTimes& one = ranks[order[i]];
    TextRow row{std::to_string(order[i]), one.host};
    for (const double seconds : one.typical.seconds) {
      row.push_back(formatted("%.1f", 1e3 * seconds));
    }
    rows.push_back(row);
  }
  return rows;
}

std::string ranks_title(const RunStatus& run) {
  return "ranks, the busiest first: medians of steps " + grouped(run.ranks->first) + " to " +
         grouped(run.ranks->last);
}

std::string clock_text(double time) {
  const auto seconds = static_cast<std::time_t>(time);
  std::tm local{};
  std::array<char, 32> text{};
  if (localtime_r(&seconds, &local) == nullptr ||
      std::strftime(text.data(), text.size(), "%m-%d %H:%M:%S", &local) == 0) {
    return "";
  }
  return text.data();
}

std::string event_text(const JournalEvent& event) {
  std::string text = event.kind;
  if (event.kind == "start") {
    text += event.step > 0 ? "ed at step " + grouped(event.step) : "ed";
    text += event.ranks > 1 ? " on " + grouped(event.ranks) + " ranks" : "";
    text += " after " + duration_text(event.seconds);
    if (event.lost_steps > 0) {
      text += "; " + counted(event.lost_steps, "step") + " of the start before are done again";
    }
  } else if (event.kind == "end") {
    text += "ed at step " + grouped(event.step);
  } else if (event.step > 0) {
    text += " at step " + grouped(event.step);
  }
  return text + (event.text.empty() ? "" : ": " + event.text);
}

/// Whether two events are one failure, as two ranks tell it: "rank 3: loss is nan".
bool is_told_again(const JournalEvent& event, const JournalEvent& later) {
  const auto cause = [](const JournalEvent& one) {
    return one.text.substr(
        one.text.starts_with("rank ") ? std::min(one.text.find(':'), one.text.size()) : 0
    );
  };
  return event.kind == "failure" && later.kind == "failure" && event.step == later.step &&
         cause(event) == cause(later);
}

/// The newest events last; evaluations and saves, which are many and tell little, left out.
std::vector<TextRow> event_rows(const RunStatus& run, size_t most) {
  std::vector<TextRow> rows;
  for (auto event = run.events.rbegin(); event != run.events.rend() && rows.size() < most;
       ++event) {
    const bool again = event != run.events.rbegin() && is_told_again(*event, *std::prev(event));
    if (event->kind != "evaluation" && event->kind != "save" && !again) {
      rows.push_back({clock_text(event->time), terminal_text(event_text(*event))});
    }
  }
  std::reverse(rows.begin(), rows.end());
  return rows;
}

Paint event_paint(const std::string& text) {
  const auto is = [&](const char* kind) { return text.starts_with(kind); };
  return is("failure") || is("restart")           ? Paint::red
         : is("start") || is("end") || is("rank") ? Paint::plain
                                                  : Paint::yellow;
}

int line_count(const std::string& text) {
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

std::string shortened(const std::string& line, int width) {
  return cells(line) <= width
             ? line
             : line.substr(0, whole_characters(line.substr(0, static_cast<size_t>(width) - 3))) +
                   "...";
}

std::vector<Panel> panels_of(const RunStatus& run) {
  std::vector<Panel> panels;
  const std::vector<RunMetrics> runs{run.metrics};
  for (const Measure& measure : measures(runs)) {
    const bool shown = measure.name == "loss" || measure.name == "lr" ||
                       measure.name == "gradient_norm" || measure.name == "tokens_per_second";
    if (shown) {
      panels.push_back(panel_of(measure, runs, 1, /*letters=*/false));
    }
  }
  return panels;
}

std::string table_of(const std::vector<TextRow>& rows, bool head) {
  std::string text = "<table>\n";
  for (size_t i = 0; i < rows.size(); ++i) {
    text += html::row(rows[i], head && i == 0 ? "th" : "td", head ? "" : "text");
  }
  return text + "</table>\n";
}

std::string goodput_picture(const Goodput& goodput) {
  const auto causes = goodput.largest_causes();
  constexpr size_t kParts = 4; // causes with a colour of their own
  Bars bars{
      .title = "where the time went, " + counted(goodput.starts, "start"),
      .parts = {"useful"},
      .rows =
          {{.name = "goodput",
            .values = {goodput.useful},
            .text = formatted("%.1f%%", 100 * goodput.share())}},
      .unit = "s",
      .limit_text = ""};
  double rest = 0;
  for (size_t i = 0; i < causes.size(); ++i) {
    if (i < kParts) {
      bars.parts.emplace_back(causes[i].name);
      bars.rows.front().values.push_back(causes[i].seconds);
    } else {
      rest += causes[i].seconds;
    }
  }
  bars.parts.emplace_back("all else");
  bars.rows.front().values.push_back(rest);
  return svg_bars(bars);
}

} // namespace

std::string status_text(const RunStatus& run, const Terminal& terminal) {
  std::string text = terminal.paint(Paint::bold, run.metrics.name) + "  " +
                     terminal.paint(paint_of(run), state_text(run)) + "\n";
  for (const RunFact& fact : facts_of(run)) {
    text += "  " + padded(fact.name, 12) + terminal.paint(fact.paint, fact.text) + "\n";
  }
  return text;
}

std::string view_text(const RunStatus& run, const Terminal& terminal, int lines) {
  constexpr int kFewestOfChart = 5, kMostOfChart = 16, kFrame = 4; // title, axis, legend, blank
  std::string facts = status_text(run, terminal);
  std::string below;
  if (const auto rows = rank_rows(run, 4); !rows.empty()) {
    below += "\n" + ranks_title(run) + "\n" + columns(rows, terminal, {Paint::bold});
  }
  if (const auto rows = event_rows(run, 6); !rows.empty()) {
    below += "\n";
    for (const TextRow& row : rows) {
      const std::string text = shortened(row[1], std::max(20, terminal.width - 18));
      below += terminal.paint(Paint::dim, row[0]) + "  " +
               terminal.paint(event_paint(row[1]), text) + "\n";
    }
  }
  const auto panels = panels_of(run);
  const int height = std::min(kMostOfChart, lines - line_count(facts) - line_count(below) - kFrame);
  if (panels.empty() || panels.front().series.empty() || height < kFewestOfChart) {
    return facts + below;
  }
  Chart chart = panels.front().chart;
  chart.width = std::clamp(terminal.width, 60, 120);
  chart.height = height;
  return facts + "\n" + line_chart(chart, panels.front().series, terminal) + below;
}

std::string view_page(const RunStatus& run, int64_t seconds) {
  std::string body = html::element("h1", run.metrics.name) + html::element("p", state_text(run));
  std::vector<TextRow> rows;
  for (const RunFact& fact : facts_of(run)) {
    rows.push_back({fact.name, fact.text});
  }
  body += table_of(rows, /*head=*/false);
  if (run.last() != nullptr) {
    body += svg_charts("", panels_of(run));
  }
  if (run.goodput) {
    body += goodput_picture(*run.goodput);
  }
  if (const auto ranks = rank_rows(run, 32); !ranks.empty()) {
    body += html::element("h2", ranks_title(run)) + table_of(ranks, /*head=*/true);
  }
  if (const auto events = event_rows(run, 100); !events.empty()) {
    body += html::element("h2", "events") + table_of(events, /*head=*/false);
  }
  return html::page(run.metrics.name, body, seconds);
}

nlohmann::ordered_json goodput_json(const std::optional<Goodput>& goodput) {
  if (!goodput) {
    return {};
  }
  nlohmann::ordered_json json{
      {"ratio", goodput->share()},
      {"seconds", goodput->total},
      {"starts", goodput->starts},
      {"useful", goodput->useful}};
  for (const Goodput::Cause& cause : goodput->causes()) {
    json[cause.key] = cause.seconds;
  }
  return json;
}

} // namespace mh
