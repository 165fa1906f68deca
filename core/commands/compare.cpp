#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/commands/commands.hpp"
#include "core/language/read.hpp"
#include "core/plan/run_metrics.hpp"
#include "core/recipe/commands.hpp"
#include "core/train/robust_z.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>

namespace mh {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kRows = 10;

/// Losses of both runs at the same place, each the mean since the place before.
struct ComparedRow {
  int64_t at = 0;
  double left = 0, right = 0;
};

/// What a run is measured by as a whole.
struct Totals {
  explicit Totals(const RunMetrics& run)
      : steps(run.steps.back().step) {
    std::vector<double> seconds, speeds;
    for (size_t i = 0; i < run.steps.size(); ++i) {
      seconds.push_back(run.steps[i].seconds);
      speeds.push_back(run.tokens_per_second(i));
      memory = std::max(memory, run.steps[i].memory);
    }
    median_seconds = median(seconds);
    tokens_per_second = median(speeds);
  }

  int64_t steps;
  double median_seconds = 0, tokens_per_second = 0;
  int64_t memory = 0;
};

double first_loss(const StepRecord& record) {
  return record.losses.empty() ? 0 : record.losses.front().value;
}

/// The means of a run's loss in (places[i - 1], places[i]].
std::vector<double>
means(const RunMetrics& run, const std::vector<int64_t>& places, int64_t StepRecord::*place) {
  std::vector<double> sums(places.size()), counts(places.size());
  for (const auto& record : run.steps) {
    const auto row = std::lower_bound(places.begin(), places.end(), record.*place);
    if (row != places.end() && !record.skipped) {
      sums[static_cast<size_t>(row - places.begin())] += first_loss(record);
      ++counts[static_cast<size_t>(row - places.begin())];
    }
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    sums[i] /= counts[i]; // NaN where the run has no step
  }
  return sums;
}

/// Rows at about ten places that both runs have reached, by steps or by tokens.
std::vector<ComparedRow>
rows(const RunMetrics& left, const RunMetrics& right, int64_t StepRecord::*place) {
  const int64_t last = std::min(left.steps.back().*place, right.steps.back().*place);
  std::vector<int64_t> places;
  for (size_t i = 1; i <= kRows; ++i) {
    const auto at = last * static_cast<int64_t>(i) / static_cast<int64_t>(kRows);
    if (at > 0 && (places.empty() || at > places.back())) {
      places.push_back(at);
    }
  }
  const auto a = means(left, places, place), b = means(right, places, place);
  std::vector<ComparedRow> rows;
  for (size_t i = 0; i < places.size(); ++i) {
    rows.push_back({places[i], a[i], b[i]});
  }
  return rows;
}

/// The common step at which the losses first differ in any bit; 0 if none does, -1 without a common
/// step.
int64_t first_difference(const RunMetrics& left, const RunMetrics& right) {
  int64_t common = 0;
  for (size_t i = 0, j = 0; i < left.steps.size() && j < right.steps.size();) {
    const auto &a = left.steps[i], &b = right.steps[j];
    if (a.step == b.step) {
      ++common;
      const bool skipped = a.skipped && b.skipped; // the norm of such a step may be no number
      if (a.skipped != b.skipped || first_loss(a) != first_loss(b) ||
          (!skipped && a.gradient_norm != b.gradient_norm)) {
        return a.step;
      }
    }
    i += a.step <= b.step;
    j += b.step <= a.step;
  }
  return common > 0 ? 0 : -1;
}

std::vector<ComparedRow> validation_rows(const RunMetrics& left, const RunMetrics& right) {
  std::vector<ComparedRow> rows;
  for (const auto& a : left.evaluations) {
    for (const auto& b : right.evaluations) {
      if (a.step == b.step && !a.losses.empty() && !b.losses.empty()) {
        rows.push_back({a.step, a.losses.front().value, b.losses.front().value});
      }
    }
  }
  return rows;
}

/// All that is to be said; printed as a table or as JSON.
struct Comparison {
  Comparison(const RunMetrics& left, const RunMetrics& right)
      : names{left.name, right.name}
      , recipe(differences(
            evaluate(left.folder / "recipe.toml"), evaluate(right.folder / "recipe.toml")
        ))
      , by_step(rows(left, right, &StepRecord::step))
      , validation(validation_rows(left, right))
      , totals{Totals(left), Totals(right)}
      , first_common(std::max(left.steps.front().step, right.steps.front().step))
      , differs_at(first_difference(left, right)) {
    if (left.tokens_of(0) != right.tokens_of(0)) {
      by_tokens = rows(left, right, &StepRecord::tokens);
    }
  }

  std::vector<std::string> names;
  std::vector<Difference> recipe;
  std::vector<ComparedRow> by_step, by_tokens, validation;
  std::vector<Totals> totals;
  int64_t first_common, differs_at;
};

Json to_json(const std::vector<ComparedRow>& rows, const char* at) {
  Json list = Json::array();
  for (const auto& row : rows) {
    list.push_back(
        {{at, row.at},
         {"left", row.left},
         {"right", row.right},
         {"difference", row.right - row.left}}
    );
  }
  return list;
}

Json to_json(const Comparison& all) {
  Json recipe = Json::array();
  for (const auto& [key, left, right] : all.recipe) {
    const auto text = [](const std::optional<Value>& value) {
      return value ? Json(to_text(*value)) : Json();
    };
    recipe.push_back({{"key", key}, {"left", text(left)}, {"right", text(right)}});
  }
  Json runs = Json::array();
  for (size_t i = 0; i < 2; ++i) {
    runs.push_back(
        {{"run", all.names[i]},
         {"steps", all.totals[i].steps},
         {"tokens_per_second", all.totals[i].tokens_per_second},
         {"seconds", all.totals[i].median_seconds},
         {"memory", all.totals[i].memory}}
    );
  }
  return {
      {"runs", runs},
      {"recipe", recipe},
      {"loss_by_step", to_json(all.by_step, "step")},
      {"loss_by_tokens", to_json(all.by_tokens, "tokens")},
      {"validation", to_json(all.validation, "step")},
      {"first_difference", all.differs_at > 0 ? Json(all.differs_at) : Json()}};
}

void print_rows(
    const char* title, const char* at, const Comparison& all, const std::vector<ComparedRow>& rows
) {
  if (rows.empty()) {
    return;
  }
  const size_t left = std::max<size_t>(10, all.names[0].size() + 2);
  const size_t right = std::max<size_t>(10, all.names[1].size() + 2);
  std::printf(
      "\n%s\n  %s%s%sdifference\n",
      title,
      padded(at, 16).c_str(),
      padded(all.names[0], left).c_str(),
      padded(all.names[1], right).c_str()
  );
  for (const auto& row : rows) {
    std::printf(
        "  %s%s%s%+.4f\n",
        padded(grouped(row.at), 16).c_str(),
        padded(formatted("%.4f", row.left), left).c_str(),
        padded(formatted("%.4f", row.right), right).c_str(),
        row.right - row.left
    );
  }
}

void print_recipe(const Comparison& all) {
  std::printf("recipe%s\n", all.recipe.empty() ? ": no difference" : "");
  size_t width = 0;
  for (const auto& difference : all.recipe) {
    width = std::max(width, difference.key.size() + 2);
  }
  for (const auto& [key, left, right] : all.recipe) {
    const auto text = [](const std::optional<Value>& value) {
      return value ? to_text(*value) : std::string("-");
    };
    std::printf(
        "  %s%s -> %s\n", padded(key, width).c_str(), text(left).c_str(), text(right).c_str()
    );
  }
}

std::string ratio(double left, double right) {
  return left > 0 ? formatted("%+.1f%%", 100 * (right / left - 1)) : "n/a";
}

void print_totals(const Comparison& all) {
  const auto& [a, b] = std::pair(all.totals[0], all.totals[1]);
  std::printf(
      "\nspeed and memory (medians of the steps; peak)\n"
      "  tokens/s        %s -> %s   %s\n"
      "  ms per step     %.1f -> %.1f   %s\n"
      "  memory          %s -> %s   %s\n",
      grouped(static_cast<int64_t>(a.tokens_per_second)).c_str(),
      grouped(static_cast<int64_t>(b.tokens_per_second)).c_str(),
      ratio(a.tokens_per_second, b.tokens_per_second).c_str(),
      1e3 * a.median_seconds,
      1e3 * b.median_seconds,
      ratio(a.median_seconds, b.median_seconds).c_str(),
      bytes_text(a.memory).c_str(),
      bytes_text(b.memory).c_str(),
      ratio(static_cast<double>(a.memory), static_cast<double>(b.memory)).c_str()
  );
}

void print(const Comparison& all) {
  print_recipe(all);
  if (all.differs_at == 0) {
    std::printf("\nloss and gradient norm are equal in every bit of all common steps\n");
  } else if (all.differs_at > all.first_common) {
    std::printf(
        "\nloss and gradient norm are equal in every bit before step %lld\n",
        static_cast<long long>(all.differs_at)
    );
  }
  print_rows("loss at equal steps (mean since the row above)", "step", all, all.by_step);
  print_rows("loss at equal tokens (mean since the row above)", "tokens", all, all.by_tokens);
  print_rows("validation loss", "step", all, all.validation);
  print_totals(all);
}

} // namespace

int command_compare(const Invocation& invocation, Host&) {
  const Comparison all(read_run(invocation.arguments[0]), read_run(invocation.arguments[1]));
  if (invocation.has("--json")) {
    std::printf("%s\n", to_json(all).dump(2).c_str());
  } else {
    print(all);
  }
  return 0;
}

} // namespace mh
