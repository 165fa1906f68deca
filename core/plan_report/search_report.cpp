#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/draw/columns.hpp"
#include "core/plan/changes.hpp"
#include "core/plan/memory.hpp"
#include "core/plan/search.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace mh {

namespace {

std::string search_gib(int64_t bytes) {
  return formatted("%.1f", static_cast<double>(bytes) / 1073741824.0);
}

/// The keys that layouts set, each once.
std::vector<std::string> set_keys(const std::vector<FoundLayout>& layouts) {
  std::vector<std::string> keys;
  for (const FoundLayout& found : layouts) {
    for (const std::string& set : found.sets) {
      const std::string key = set.substr(0, set.find('='));
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
        keys.push_back(key);
      }
    }
  }
  return keys;
}

/// "tensor" for parallel.tensor, "recompute" for recompute.use.
std::string short_name(const std::string& key) {
  const std::string whole = key.ends_with(".use") ? key.substr(0, key.size() - 4) : key;
  return whole.substr(whole.rfind('.') + 1);
}

std::string value_of(const std::string& key, const std::vector<std::string>& sets) {
  for (const std::string& set : sets) {
    if (set.starts_with(key + "=")) {
      const std::string value = set.substr(key.size() + 1);
      return value == "true" ? "yes" : value == "false" ? "-" : value;
    }
  }
  return "-";
}

TextRow frontier_row(const FoundLayout& found, const std::vector<std::string>& keys) {
  const Plan& plan = found.plan;
  TextRow row{
      search_gib(plan.most()),
      formatted("%.2f", plan.step.total),
      grouped(std::llround(plan.tokens_per_second())),
      formatted("%.1f%%", 100 * plan.mfu())};
  for (const std::string& key : keys) {
    row.push_back(value_of(key, found.sets));
  }
  row.push_back(fit_text(plan.fit()));
  return row;
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
  const std::vector<std::string> keys = set_keys(result.frontier);
  TextRow head{"GiB", "s/step", "tokens/s", "MFU"};
  for (const std::string& key : keys) {
    head.push_back(short_name(key));
  }
  head.emplace_back();
  std::vector<TextRow> rows{head};
  for (const auto& found : result.frontier) {
    rows.push_back(frontier_row(found, keys));
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
