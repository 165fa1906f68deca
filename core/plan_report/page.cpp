// A plan as one HTML page: memory, time, pipeline, scaling.

#include "core/draw/page.hpp"

#include "core/base/number_text.hpp"
#include "core/draw/svg_bars.hpp"
#include "core/draw/svg_chart.hpp"
#include "core/plan/timeline.hpp"
#include "core/plan_report/report.hpp"

#include <algorithm>
#include <sstream>

namespace mh {

namespace {

double in_gib(int64_t bytes) {
  return static_cast<double>(bytes) / 1073741824.0;
}

std::string memory_bars(const Plan& plan) {
  Bars bars{
      .title = "memory of a rank, by pipeline stage",
      .parts = {},
      .rows = {},
      .unit = "GiB",
      .limit = in_gib(plan.capacity),
      .limit_text = gib(plan.capacity) + " GiB"};
  for (const auto& part : kMemoryParts) {
    bars.parts.emplace_back(part.name);
  }
  for (const size_t i : shown_stages(plan)) {
    const StagePlan& stage = plan.stages[i];
    BarRow row{"stage " + std::to_string(i) + ": " + stage.layers, {}, {}};
    for (const auto& part : kMemoryParts) {
      row.values.push_back(in_gib(stage.*part.bytes));
    }
    row.text =
        gib(stage.total()) + " GiB" + behind(", ", fit_text(fit_of(stage.total(), plan.capacity)));
    bars.rows.push_back(std::move(row));
  }
  return svg_bars(bars);
}

std::string time_bars(const Plan& plan) {
  Bars bars{
      .title = "time of a step: " + seconds_text(plan.step.total),
      .parts = {"time"},
      .rows = {},
      .unit = "s",
      .limit_text = {}};
  for (const auto& [name, seconds] : time_parts(plan.step)) {
    const double share = 100 * seconds / plan.step.total;
    if (share >= 0.05) {
      bars.rows.push_back({name, {seconds}, seconds_text(seconds) + formatted(", %.1f%%", share)});
    }
  }
  return svg_bars(bars);
}

/// The passes between `begin` and `end`, on a clock that starts there.
Timeline part_of(const Timeline& timeline, double begin, double end) {
  Timeline part{.stages = {}, .length = end - begin};
  for (const auto& stage : timeline.stages) {
    auto& passes = part.stages.emplace_back();
    for (const auto& [what, from, to] : stage) {
      if (begin <= from && to <= end) {
        passes.push_back({what, from - begin, to - begin});
      }
    }
  }
  return part;
}

/// The whole step, or its beginning and its end: as much as can be read.
std::string pipeline_pictures(const Plan& plan) {
  constexpr double kPasses = 50; // side by side
  const Timeline& whole = plan.timeline;
  double shortest = whole.length;
  for (const auto& stage : whole.stages) {
    for (const auto& pass : stage) {
      shortest = std::min(shortest, pass.end - pass.begin);
    }
  }
  const std::string title = "pipeline, by microbatch";
  const double room = kPasses * shortest;
  if (whole.length <= 2 * room) {
    return timeline_svg(title, whole);
  }
  const std::string seconds = " " + seconds_text(room) + " of " + seconds_text(whole.length);
  return timeline_svg(title + ": the first" + seconds, part_of(whole, 0, room)) +
         timeline_svg(
             title + ": the last" + seconds, part_of(whole, whole.length - room, whole.length)
         );
}

/// Planned tokens/s over ranks, next to those that would grow as the ranks do.
std::string scaling_chart(const PlanReport& report) {
  Series planned{.name = "planned", .x = {}, .y = {}},
      even{.name = "in proportion", .x = {}, .y = {}};
  Series chosen{.name = "this plan", .x = {}, .y = {}, .marks = true};
  Series share{.name = "planned", .x = {}, .y = {}};
  even.paint = Paint::green;
  for (const Plan& plan : report.scaling) {
    const auto ranks = static_cast<double>(plan.shape.world());
    const Plan& first = report.scaling.front();
    planned.x.push_back(ranks);
    planned.y.push_back(plan.tokens_per_second());
    even.x.push_back(ranks);
    even.y.push_back(first.tokens_per_second() * ranks / static_cast<double>(first.shape.world()));
    share.x.push_back(ranks);
    share.y.push_back(100 * plan.mfu());
  }
  chosen.x = {static_cast<double>(report.plan.shape.world())};
  chosen.y = {report.plan.tokens_per_second()};
  chosen.paint = Paint::yellow;
  std::vector<Panel> panels{
      {.chart = {.title = "tokens/s", .x_label = "ranks", .from_zero = true},
       .series = {planned, even, chosen}}};
  if (report.plan.peak_flops > 0) {
    chosen.y = {100 * report.plan.mfu()};
    panels.push_back(
        {.chart = {.title = "MFU in %", .x_label = "ranks", .from_zero = true},
         .series = {share, chosen}}
    );
  }
  return svg_charts(
      "more data ranks, the same " + std::to_string(report.recipe.batch.global) + " samples a step",
      panels
  );
}

std::string list_of(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) {
    text += html::element("li", line) + "\n";
  }
  return text.empty() ? "" : "<ul>\n" + text + "</ul>\n";
}

std::string verdict(const PlanReport& report) {
  const Plan& plan = report.plan;
  std::string text = grouped(std::llround(plan.tokens_per_second())) + " tokens/s";
  if (plan.peak_flops > 0) {
    text += formatted(", MFU %.1f%%, HFU %.1f%%", 100 * plan.mfu(), 100 * plan.hfu());
  }
  if (plan.capacity > 0) {
    text += std::string(plan.fits() ? ". It fits" : ". It does not fit") +
            (plan.fit() == Fit::tight ? ", tight: " : ": ") + gib(plan.most()) + " of " +
            gib(plan.capacity) + " GiB";
  }
  return text + ".";
}

std::string comparison(const PlanReport& report, const Measured& run) {
  const Plan& plan = report.plan;
  const auto count = [](double value) { return grouped(std::llround(value)); };
  std::string text =
      "<table>\n" + html::row({"", "planned", "measured in " + run.folder}, "th", "");
  text += html::row(
      {"time of a step", seconds_text(plan.step.total), seconds_text(run.seconds)}, "td", ""
  );
  text += html::row(
      {"tokens/s", count(plan.tokens_per_second()), count(run.tokens_per_second)}, "td", ""
  );
  if (run.tensors > 0) {
    text += html::row(
        {"peak of tensors in GiB",
         gib(plan.stages.front().tensors() + copied_before(plan, report.recipe, run)),
         gib(run.tensors)},
        "td",
        ""
    );
  }
  if (run.memory > run.tensors) {
    text += html::row({"peak of rank 0 in GiB, all that it holds", "", gib(run.memory)}, "td", "");
  }
  return text + "</table>\n";
}

} // namespace

std::string plan_page(const PlanReport& report) {
  const Plan& plan = report.plan;
  std::string body = html::element("h1", report.recipe.name);
  std::istringstream lines(plan_title(report));
  for (std::string line; std::getline(lines, line);) {
    body += html::element("p", line) + "\n";
  }
  body += html::element("p", verdict(report)) + "\n";
  body += memory_bars(plan) + time_bars(plan);
  if (plan.shape.pp > 1) {
    body += pipeline_pictures(plan);
  }
  if (report.scaling.size() > 1) {
    body += scaling_chart(report);
  }
  if (report.measured) {
    body += comparison(report, *report.measured);
  }
  std::vector<std::string> changes;
  for (const Change& change : report.changes) {
    changes.push_back(change_text(plan, change));
  }
  body += changes.empty() ? "" : html::element("p", "Changes that would help:") + list_of(changes);
  body += plan.notes.empty() ? "" : html::element("p", "Notes:") + list_of(plan.notes);
  return html::page(report.recipe.name + ": plan", body);
}

} // namespace mh
