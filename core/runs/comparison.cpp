#include "core/runs/comparison.hpp"

#include "core/language/read.hpp"
#include "core/records/robust_z.hpp"

#include <algorithm>

namespace mh {

namespace {

constexpr size_t kRows = 10;

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

/// Comparison::differs_at.
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

} // namespace

RunTotals::RunTotals(const RunMetrics& run)
    : steps(run.steps.back().step)
    , goodput(mh::goodput(run.steps, read_journal(run.folder))) {
  std::vector<double> seconds, speeds;
  for (size_t i = 0; i < run.steps.size(); ++i) {
    seconds.push_back(run.steps[i].seconds);
    speeds.push_back(run.tokens_per_second(i));
    memory = std::max(memory, run.steps[i].memory);
  }
  median_seconds = median(seconds);
  tokens_per_second = median(speeds);
}

Comparison::Comparison(const RunMetrics& left, const RunMetrics& right)
    : names{left.name, right.name}
    , recipe(
          differences(evaluate(left.folder / "recipe.toml"), evaluate(right.folder / "recipe.toml"))
      )
    , by_step(rows(left, right, &StepRecord::step))
    , validation(validation_rows(left, right))
    , totals{RunTotals(left), RunTotals(right)}
    , first_common(std::max(left.steps.front().step, right.steps.front().step))
    , differs_at(first_difference(left, right)) {
  if (left.tokens_of(0) != right.tokens_of(0)) {
    by_tokens = rows(left, right, &StepRecord::tokens);
  }
}

} // namespace mh
