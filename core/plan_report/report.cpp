#include "core/plan_report/report.hpp"

#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/draw/columns.hpp"
#include "core/mesh/layout.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

namespace mh {

namespace {

using Json = nlohmann::ordered_json;

} // namespace

std::string seconds_text(double seconds) {
  return seconds >= 1 ? formatted("%.2f s", seconds) : formatted("%.1f ms", 1e3 * seconds);
}

namespace {

/// "124M", "68.98B".
std::string short_count(int64_t count) {
  const auto value = static_cast<double>(count);
  return value >= 1e9   ? formatted("%.2fB", value / 1e9)
         : value >= 1e6 ? formatted("%.0fM", value / 1e6)
                        : grouped(count);
}

std::string layout_words(const Plan& plan, const Recipe& recipe) {
  const auto& shape = plan.shape;
  std::vector<std::string> axes;
  for (const MeshAxis axis :
       {MeshAxis::tp, MeshAxis::pp, MeshAxis::cp, MeshAxis::ep, MeshAxis::dp}) {
    if (const int64_t ranks = degree(shape, axis); ranks > 1) {
      axes.push_back(recipe.parallel.word(axis) + " " + std::to_string(ranks));
    }
  }
  return axes.empty() ? "one rank" : join(axes);
}

} // namespace

std::string plan_title(const PlanReport& report) {
  const Plan& plan = report.plan;
  const auto& recipe = report.recipe;
  const auto of_sample = std::llround(plan.tokens / static_cast<double>(recipe.batch.global));
  std::string text = recipe.name + ": " + short_count(plan.parameters) + " parameters on " +
                     std::to_string(plan.shape.world()) + " x " + plan.machine.hardware.name +
                     ", " + layout_words(plan, recipe) + report.settings;
  text += "\n" + std::to_string(plan.pipeline.microbatches) + " microbatch" +
          (plan.pipeline.microbatches == 1 ? "" : "es") + " of " +
          std::to_string(recipe.batch.micro) + " x " + grouped(of_sample) +
          " tokens on each data rank, " + recipe.precision + ", recompute " + recipe.recompute.use;
  if (plan.shape.pp > 1) {
    text += ", schedule " + recipe.parallel.schedule.use;
    if (plan.pipeline.virtual_stages > 1) {
      text += " with " + std::to_string(plan.pipeline.virtual_stages) + " chunks a stage";
    }
  }
  return text + "\n";
}

std::vector<std::pair<std::string, double>> time_parts(const StepTime& step) {
  std::vector<std::pair<std::string, double>> parts{
      {"GEMMs", step.products},
      {"attention", step.attention},
      {"memory-bound operations", step.memory}};
  for (const auto& [axis, seconds] : step.exposed) {
    if (seconds > 0) {
      parts.emplace_back("waiting for " + (axis == "world" ? "all ranks" : axis), seconds);
    }
  }
  parts.emplace_back("pipeline bubble", step.bubble);
  parts.emplace_back("optimizer", step.optimizer);
  return parts;
}

namespace {

std::string time_table(const Plan& plan) {
  const StepTime& step = plan.step;
  std::string text = "time of a step: " + seconds_text(step.total) +
                     (plan.shape.pp > 1 ? " (parts of the stage with the most work)" : "") + "\n";
  for (const auto& [name, seconds] : time_parts(step)) {
    if (seconds / step.total > 0.0005) {
      text += formatted(
          "  %-24s %10s  %5.1f%%  %s\n",
          name.c_str(),
          seconds_text(seconds).c_str(),
          100 * seconds / step.total,
          bar(seconds / step.total, 30).c_str()
      );
    }
  }
  return text;
}

std::string speed(const PlanReport& report) {
  const Plan& plan = report.plan;
  const double each = plan.tokens_per_second() / static_cast<double>(plan.shape.world());
  std::string text = "speed: " + grouped(std::llround(plan.tokens_per_second())) + " tokens/s";
  if (plan.shape.world() > 1) {
    text += ", " + grouped(std::llround(each)) + " a rank";
  }
  text += "\n";
  if (plan.peak_flops > 0) {
    const double rate =
        plan.model_flops / plan.step.total / static_cast<double>(plan.shape.world()) / 1e12;
    text += formatted(
        "  MFU %.1f%%, HFU %.1f%%: %.3g TFLOP/s a rank of a peak of %.4g (%s)\n",
        100 * plan.mfu(),
        100 * plan.hfu(),
        rate,
        plan.peak_flops / 1e12,
        plan.precision.c_str()
    );
    text += std::string("  counted: ") + kFlopsFormula +
            "; HFU: all that the step executes, also what is recomputed or padded, or computed "
            "within the chunks of a recurrence\n";
  }
  if (report.run_tokens) {
    const double tokens = *report.run_tokens;
    const double seconds = tokens / plan.tokens_per_second(), days = seconds / 86400;
    const double rank_hours = days * 24 * static_cast<double>(plan.shape.world());
    const std::string count = tokens >= 1e10  ? grouped(std::llround(tokens / 1e9)) + "B"
                              : tokens >= 1e9 ? formatted("%.1fB", tokens / 1e9)
                                              : grouped(std::llround(tokens));
    const std::string time = days >= 10  ? formatted("%.0f days", days)
                             : days >= 1 ? formatted("%.1f days", days)
                                         : duration_text(seconds);
    text += "  " + count + " tokens: " + time + ", " +
            (rank_hours >= 10 ? grouped(std::llround(rank_hours)) : formatted("%.2g", rank_hours)) +
            " rank-hours\n";
  }
  return text;
}

std::string effect(const Plan& before, const Plan& after) {
  const auto bytes = after.most() - before.most();
  const double faster = before.step.total / after.step.total - 1;
  const std::string memory = gib(std::abs(bytes));
  std::string text =
      (memory == gib(0) ? std::string("the same memory") : (bytes < 0 ? "-" : "+") + memory + " GiB"
      ) +
      ", " + formatted("%.0f%% %s", 100 * std::abs(faster), faster >= 0 ? "faster" : "slower");
  return text + (before.fits()                  ? ""
                 : after.fit() == Fit::too_much ? ", does not fit yet"
                                                : ", fits" + behind(", ", fit_text(after.fit())));
}

} // namespace

int64_t copied_before(const Plan& plan, const Recipe& recipe, const Measured& run) {
  const bool saved =
      plan.host && recipe.checkpoint.interval > 0 && run.last > recipe.checkpoint.interval;
  return saved ? copied_bytes(plan, plan.stages.front(), recipe) : 0;
}

std::string change_text(const Plan& plan, const Change& change) {
  return set_options(change.sets) + ": " + effect(plan, change.plan);
}

namespace {

/// Planned next to measured, a row each.
std::string measured_table(const Plan& plan, const Recipe& recipe, const Measured& run) {
  std::string text = "\nplanned and measured, steps " + grouped(run.first) + " to " +
                     grouped(run.last) + " of " + run.folder + "\n";
  text += formatted("  %-24s %10s  %10s  %10s\n", "", "planned", "measured", "difference");
  const auto row = [&](const char* what, double planned, double found, auto&& text_of) {
    text += formatted(
        "  %-24s %10s  %10s  %+9.1f%%\n",
        what,
        text_of(planned).c_str(),
        text_of(found).c_str(),
        100 * (planned / found - 1)
    );
  };
  const auto count = [](double value) { return grouped(std::llround(value)); };
  row("time of a step", plan.step.total, run.seconds, seconds_text);
  row("tokens/s", plan.tokens_per_second(), run.tokens_per_second, count);
  const auto bytes = [](double value) { return gib(std::llround(value)); };
  if (run.tensors > 0) {
    const int64_t copied = copied_before(plan, recipe, run);
    row("peak of tensors, GiB",
        static_cast<double>(plan.stages.front().tensors() + copied),
        static_cast<double>(run.tensors),
        bytes);
    text += copied > 0 ? "    planned with the whole copy that is saved in the background\n" : "";
  }
  if (run.memory > run.tensors) {
    text += formatted("  %-24s %10s  %10s\n", "peak of rank 0, GiB", "", gib(run.memory).c_str()) +
            "    with what is no tensor's: the program, its libraries, data read, memory kept for "
            "reuse\n";
  }
  return text;
}

std::string uneven_experts(const Plan& even, const UnevenPlan& uneven, const Terminal& terminal) {
  const auto row = [](const std::string& name, const Plan& plan) {
    return TextRow{
        name,
        gib(plan.most()) + behind(", ", fit_text(plan.fit())),
        seconds_text(plan.step.total),
        grouped(std::llround(plan.tokens_per_second())),
        formatted("%.1f%%", 100 * plan.mfu())};
  };
  return columns(
      {{"experts of the busiest rank", "GiB", "step", "tokens/s", "MFU"},
       row("get as many rows as others", even),
       row(formatted("get %g times the mean", uneven.imbalance), uneven.plan)},
      terminal
  );
}

Json stage_json(const StagePlan& stage) {
  return {
      {"stage", stage.stage},
      {"layers", stage.layers},
      {"parameters", stage.parameters},
      {"gradients", stage.gradients},
      {"optimizer", stage.state},
      {"activations", stage.activations},
      {"workspace", stage.workspace},
      {"reserved", stage.reserved},
      {"total", stage.total()},
      {"busy_seconds", stage.busy}};
}

} // namespace

std::string plan_text(const PlanReport& report, const Terminal& terminal) {
  const Plan& plan = report.plan;
  std::string text = plan_title(report) + "\n" + memory_table(plan, terminal) + "\n" +
                     time_table(plan) + "\n" + speed(report);
  if (report.measured) {
    text += measured_table(plan, report.recipe, *report.measured);
  }
  if (report.uneven) {
    text += "\n" + uneven_experts(plan, *report.uneven, terminal);
  }
  for (const auto& note : plan.notes) {
    text += "note: " + note + "\n";
  }
  if (!report.changes.empty()) {
    text += std::string("\n") +
            (plan.fits() ? "changes that would help:" : "it does not fit; what would help:") + "\n";
    for (const auto& change : report.changes) {
      text += "  " + change_text(plan, change) + "\n";
    }
  } else if (!plan.fits()) {
    text += "\nit does not fit, and no single change that was tried makes it fit\n";
  }
  return text;
}

std::string plan_json(const PlanReport& report) {
  const Plan& plan = report.plan;
  Json stages = Json::array();
  for (const auto& stage : plan.stages) {
    stages.push_back(stage_json(stage));
  }
  Json parts = Json::object();
  for (const auto& [name, seconds] : time_parts(plan.step)) {
    parts[name] = seconds;
  }
  Json json{
      {"name", report.recipe.name},
      {"hardware", plan.machine.hardware.name},
      {"ranks", plan.shape.world()},
      {"parameters", plan.parameters},
      {"fits", plan.fits()},
      {"tight", plan.fit() == Fit::tight},
      {"capacity_bytes", plan.capacity},
      {"stages", stages},
      {"step_seconds", plan.step.total},
      {"step_parts", parts},
      {"tokens_per_step", plan.tokens},
      {"tokens_per_second", plan.tokens_per_second()},
      {"peak_tflops", plan.peak_flops / 1e12},
      {"model_tflops_per_rank",
       plan.model_flops / plan.step.total / static_cast<double>(plan.shape.world()) / 1e12},
      {"executed_flops", plan.executed_flops},
      {"model_flops", plan.model_flops},
      {"flops_formula", kFlopsFormula},
      {"notes", plan.notes}};
  if (plan.peak_flops > 0) {
    json["mfu"] = plan.mfu();
    json["hfu"] = plan.hfu();
  }
  if (report.run_tokens) {
    const double days = *report.run_tokens / plan.tokens_per_second() / 86400;
    json["run_tokens"] = *report.run_tokens;
    json["run_days"] = days;
    json["run_rank_hours"] = days * 24 * static_cast<double>(plan.shape.world());
  }
  if (const auto& run = report.measured) {
    json["measured"] = {
        {"run", run->folder},
        {"first_step", run->first},
        {"last_step", run->last},
        {"step_seconds", run->seconds},
        {"tokens_per_second", run->tokens_per_second},
        {"peak_bytes", run->memory}};
  }
  if (report.uneven) {
    const Plan& uneven = report.uneven->plan;
    json["uneven_experts"] = {
        {"imbalance", report.uneven->imbalance},
        {"bytes", uneven.most()},
        {"fits", uneven.fits()},
        {"step_seconds", uneven.step.total},
        {"tokens_per_second", uneven.tokens_per_second()}};
  }
  for (const auto& change : report.changes) {
    json["changes"].push_back(
        {{"sets", change.sets},
         {"bytes", change.plan.most() - plan.most()},
         {"step_seconds", change.plan.step.total},
         {"fits", change.plan.fits()}}
    );
  }
  return json.dump(2) + "\n";
}

} // namespace mh
