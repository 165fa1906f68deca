// What points would take: each is planned, none is run.

#include "core/host/columns.hpp"
#include "core/host/folders.hpp"
#include "core/host/svg.hpp"
#include "core/host/sweep/sweep.hpp"
#include "core/plan/hardware.hpp"
#include "core/plan/plan.hpp"
#include "core/recipe/json_value.hpp"
#include "core/recipe/text.hpp"
#include "core/train/words.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>

#include <cmath>

namespace mh {

namespace {

using Json = nlohmann::ordered_json;

/// Where a point is planned: what was asked for, else what its notes say.
std::string machine_of(const PointRun& run, const std::string& on) {
  const Value* noted = run.point.notes.find("on");
  return !on.empty() ? on : noted != nullptr && noted->is_string() ? noted->as_string() : kUsualGpu;
}

} // namespace

void plan_point(PointRun& run, const Recipe& recipe, Host& host, const std::string& on) {
  try {
    ReadOptions roots;
    roots.roots = recipe_folders();
    const int64_t ranks = recipe.parallel.ranks();
    const Machine machine = find_machine(machine_of(run, on), roots);
    const RecordedStep step = record_step(
        {.recipe = recipe, .host = host, .world = ranks, .device = planned_device(recipe)}
    );
    const Plan plan = make_plan(step, recipe, machine);
    run.plan = PlannedPoint{
        .ranks = ranks,
        .seconds = plan.step.total,
        .tflops = papers_flops(recipe) / plan.step.total / static_cast<double>(ranks) / 1e12,
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
    const Value* name = run.point.notes.find("name");
    TextRow row{name != nullptr && name->is_string() ? name->as_string() : run.point.label()};
    if (!run.plan) {
      row.insert(row.end(), {"-", "-", "-", "-", "-", "-", "-", run.reason});
      rows.push_back(std::move(row));
      continue;
    }
    const PlannedPoint& plan = *run.plan;
    const Value* published = run.point.notes.find("published_tflops");
    const bool known = published != nullptr && published->is_number();
    row.insert(
        row.end(),
        {std::to_string(plan.ranks),
         svg::format("%.2f s", plan.seconds),
         known ? svg::format("%.0f", published->as_number()) : "-",
         svg::format("%.1f", plan.tflops),
         known ? svg::format("%+.1f%%", 100 * (plan.tflops / published->as_number() - 1)) : "-",
         svg::format("%.1f%%", 100 * plan.mfu),
         bytes_text(plan.bytes) +
             (plan.bytes > plan.capacity && plan.capacity > 0 ? " too much" : ""),
         ""}
    );
    rows.push_back(std::move(row));
  }
  return columns(rows, terminal, {Paint::cyan}) +
         "TFLOP/s per GPU as arXiv:2104.04473 counts them (equation 3, recomputation included)\n";
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
           {"fits", run.plan->capacity == 0 || run.plan->bytes <= run.plan->capacity}}
      );
    } else {
      object["reason"] = run.reason;
    }
    all.push_back(std::move(object));
  }
  return all.dump(2) + "\n";
}

} // namespace mh
