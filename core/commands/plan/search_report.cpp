#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/draw/columns.hpp"
#include "core/plan/changes.hpp"
#include "core/plan/memory.hpp"
#include "core/plan/search.hpp"

#include <nlohmann/json.hpp>

#include <cmath>

namespace mh {

namespace {

std::string search_gib(int64_t bytes) {
  return formatted("%.1f", static_cast<double>(bytes) / 1073741824.0);
}

/// "1f1b", "1f1b x 2" with two chunks a stage; "-" without a pipeline.
std::string schedule_words(const Recipe::Parallel& parallel) {
  if (parallel.pipeline == 1) {
    return "-";
  }
  const int64_t chunks = parallel.virtual_stages;
  return parallel.schedule.use + (chunks > 1 ? " x " + std::to_string(chunks) : "");
}

TextRow frontier_row(const FoundLayout& found) {
  const auto& parallel = found.recipe.parallel;
  const Plan& plan = found.plan;
  return {
      search_gib(plan.most()),
      formatted("%.2f", plan.step.total),
      grouped(std::llround(plan.tokens_per_second())),
      formatted("%.1f%%", 100 * plan.mfu()),
      std::to_string(plan.shape.tp),
      parallel.sequence ? "yes" : "-",
      std::to_string(plan.shape.cp),
      std::to_string(plan.shape.pp),
      std::to_string(plan.shape.ep),
      std::to_string(plan.shape.dp),
      std::to_string(parallel.zero),
      std::to_string(found.recipe.batch.micro),
      found.recipe.recompute.use,
      schedule_words(parallel),
      fit_text(plan.fit())};
}

} // namespace

std::string search_text(
    const SearchTask& task,
    const SearchResult& result,
    const std::string& command,
    const Terminal& terminal
) {
  std::string text = task.base.name + " on " + std::to_string(task.world) + " x " +
                     task.machine.hardware.name + ": " + grouped(result.tried) + " layouts in " +
                     formatted("%.0f", result.seconds) + " s\n  " + grouped(result.refused) +
                     " are refused by the recipe, " + grouped(result.too_large) +
                     " do not fit with weights, gradients and state alone, " +
                     grouped(result.planned) + " were planned, " + grouped(result.fit) + " fit";
  if (const int64_t memory = task.machine.hardware.memory(); memory > 0) {
    text += " in " + search_gib(memory) + " GiB";
  }
  text += "\n\n";
  if (result.frontier.empty()) {
    return text + "none is left" +
           (result.refused > 0 ? "; one was refused because\n" + result.refusal : "") + "\n";
  }
  std::vector<TextRow> rows{
      {"GiB",
       "s/step",
       "tokens/s",
       "MFU",
       "tensor",
       "sequence",
       "context",
       "pipeline",
       "expert",
       "data",
       "zero",
       "micro",
       "recompute",
       "schedule",
       ""}};
  for (const auto& found : result.frontier) {
    rows.push_back(frontier_row(found));
  }
  text += columns(rows, terminal);
  text += result.fit == 0 ? "\nnone fits; this one takes least:\n" : "\nthe fastest that fits:\n";
  return text + "  " + command + " " + set_options(result.frontier.front().sets) + "\n";
}

std::string search_json(const SearchTask& task, const SearchResult& result) {
  nlohmann::ordered_json json{
      {"name", task.base.name},
      {"hardware", task.machine.hardware.name},
      {"ranks", task.world},
      {"capacity_bytes", task.machine.hardware.memory()},
      {"tried", result.tried},
      {"refused", result.refused},
      {"too_large", result.too_large},
      {"planned", result.planned},
      {"fit", result.fit},
      {"seconds", result.seconds},
      {"frontier", nlohmann::ordered_json::array()}};
  for (const auto& found : result.frontier) {
    json["frontier"].push_back(
        {{"sets", found.sets},
         {"bytes", found.plan.most()},
         {"step_seconds", found.plan.step.total},
         {"tokens_per_second", found.plan.tokens_per_second()},
         {"mfu", found.plan.mfu()},
         {"fits", found.plan.fits()},
         {"tight", found.plan.fit() == Fit::tight},
         {"searched_bytes", found.bytes},
         {"searched_step_seconds", found.seconds}}
    );
  }
  return json.dump(2) + "\n";
}

} // namespace mh
