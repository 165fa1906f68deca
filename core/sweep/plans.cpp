// The plans of points: each is planned, none is run.

#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/draw/columns.hpp"
#include "core/draw/svg.hpp"
#include "core/language/json_value.hpp"
#include "core/plan/memory.hpp"
#include "core/plan/plan.hpp"
#include "core/sweep/sweep.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <optional>

namespace mh {

namespace {

using Json = nlohmann::ordered_json;

/// A number of a point's notes.
std::optional<double> noted(const PointRun& run, const char* key) {
  const Value* note = run.point.notes.find(key);
  return note != nullptr && note->is_number() ? std::optional(note->as_number()) : std::nullopt;
}

/// Whether a point's TFLOP/s are counted by equation 3 of arXiv:2104.04473, as its notes ask.
bool as_paper(const PointRun& run) {
  const Value* note = run.point.notes.find("flops");
  return note != nullptr && note->is_string() && note->as_string() == "arXiv:2104.04473";
}

} // namespace

void plan_point(PointRun& run, const Recipe& recipe, Host& host, const Machines& machines) {
  try {
    const int64_t ranks = recipe.parallel.ranks();
    const RecordedStep step = record_step(
        {.recipe = recipe,
         .host = host,
         .world = ranks,
         .device = planned_device(recipe, host),
         .imbalance = noted(run, "imbalance").value_or(1)}
    );
    const Plan plan = make_plan(step, recipe, machines.of(recipe, ranks));
    const double flops = as_paper(run) ? papers_flops(recipe, plan) : plan.model_flops;
    run.plan = PlannedPoint{
        .ranks = ranks,
        .seconds = plan.step.total,
        .tflops = flops / plan.step.total / static_cast<double>(ranks) / 1e12,
        .bytes = plan.most(),
        .capacity = plan.capacity,
        .mfu = plan.mfu()};
    run.state = PointState::done;
  } catch (const Error& error) {
    run.state = PointState::failed;
    const std::string what = error.what();
    run.reason = what.substr(0, what.find('\n'));
  }
}

std::string plans_table(const std::vector<PointRun>& points, const Terminal& terminal) {
  std::vector<TextRow> rows{
      {"POINT",
       "RANKS",
       "STEP",
       "PUBLISHED",
       "PREDICTED",
       "DIFFERENCE",
       "MFU",
       "MEMORY",
       "REASON"}};
  for (const PointRun& run : points) {
    TextRow row{run.point.label()};
    if (!run.plan) {
      row.insert(row.end(), {"-", "-", "-", "-", "-", "-", "-", run.reason});
      rows.push_back(std::move(row));
      continue;
    }
    const PlannedPoint& plan = *run.plan;
    const auto published = noted(run, "published_tflops");
    row.insert(
        row.end(),
        {std::to_string(plan.ranks),
         svg::format("%.2f s", plan.seconds),
         published ? svg::format("%.0f", *published) : "-",
         svg::format("%.1f", plan.tflops),
         published ? svg::format("%+.1f%%", 100 * (plan.tflops / *published - 1)) : "-",
         svg::format("%.1f%%", 100 * plan.mfu),
         bytes_text(plan.bytes) + behind(", ", fit_text(fit_of(plan.bytes, plan.capacity))),
         ""}
    );
    rows.push_back(std::move(row));
  }
  const bool papers = !points.empty() && std::all_of(points.begin(), points.end(), as_paper);
  return columns(rows, terminal, {Paint::cyan}) + "TFLOP/s per GPU " +
         (papers ? "as arXiv:2104.04473 counts them (equation 3, recomputation included)\n"
                 : "as the model counts, without recomputation\n");
}

std::string plans_json(const std::vector<PointRun>& points) {
  Json all = Json::array();
  for (const PointRun& run : points) {
    Json object{{"name", run.point.label()}, {"values", Json::object()}};
    for (const auto& [key, value] : run.point.values) {
      object["values"][key] = json_value(value);
    }
    for (const auto& note : run.point.notes) {
      object[note.key] = json_value(note.value);
    }
    if (run.plan) {
      object.update(
          {{"ranks", run.plan->ranks},
           {"step_seconds", run.plan->seconds},
           {"predicted_tflops", run.plan->tflops},
           {"mfu", run.plan->mfu},
           {"memory_bytes", run.plan->bytes},
           {"fits", fit_of(run.plan->bytes, run.plan->capacity) != Fit::too_much}}
      );
    } else {
      object["reason"] = run.reason;
    }
    all.push_back(std::move(object));
  }
  return all.dump(2) + "\n";
}

} // namespace mh
