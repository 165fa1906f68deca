#include "core/records/goodput.hpp"

#include "core/base/number_text.hpp"

#include <algorithm>

namespace mh {

namespace {

/// Whether a start ended by itself, or because a person asked for it: what comes then is no
/// restart.
bool is_orderly(const JournalEvent& event) {
  return event.kind == "end" && event.text != "SIGTERM" && event.text != "SIGUSR1";
}

} // namespace

std::vector<Goodput::Cause> Goodput::causes() const {
  return {
      {"start_up", "start-up", start_up},
      {"restart", "restarts", restart},
      {"recomputed", "recomputed steps", recomputed},
      {"skipped", "skipped steps", skipped},
      {"data", "waiting for data", data},
      {"saving", "saving", saving},
      {"evaluation", "evaluation", evaluation},
      {"other", "other", other}};
}

std::vector<Goodput::Cause> Goodput::largest_causes() const {
  auto sorted = causes();
  std::stable_sort(sorted.begin(), sorted.end(), [](const Cause& a, const Cause& b) {
    return a.seconds > b.seconds;
  });
  return sorted;
}

std::optional<Goodput>
goodput(const std::vector<StepRecord>& steps, const std::vector<JournalEvent>& journal) {
  Goodput sum;
  double first = 0,
         away = 0;  // when the first process began; time after ends that counts for nothing
  double alive = 0; // the newest sign of life
  bool ended = false;
  for (const JournalEvent& event : journal) {
    sum.recomputed += event.lost_seconds;
    if (event.kind == "start") {
      const double began = event.time - event.seconds;
      const double gap = std::max(0.0, began - std::max(alive, event.alive));
      if (sum.starts == 0) {
        first = began;
      } else {
        (ended ? away : sum.restart) += gap;
      }
      ++sum.starts;
      sum.start_up += event.seconds;
      alive = event.time;
      ended = false;
    } else if (event.kind == "evaluation" || event.kind == "save" || event.kind == "end") {
      sum.evaluation += event.kind == "evaluation" ? event.seconds : 0;
      sum.saving += event.kind == "save" ? event.seconds : 0;
      alive = event.time;
      ended = is_orderly(event);
    }
  }
  if (sum.starts == 0) {
    return std::nullopt;
  }
  for (const StepRecord& step : steps) {
    if (step.time >= first) { // older versions kept no time, and no journal
      sum.data += step.data_seconds;
      (step.skipped ? sum.skipped : sum.useful) += step.seconds - step.data_seconds;
      alive = std::max(alive, step.time);
    }
  }
  sum.total = alive - first - away;
  double known = sum.useful;
  for (const Goodput::Cause& cause : sum.causes()) {
    known += cause.seconds;
  }
  sum.other = std::max(0.0, sum.total - known);
  return sum;
}

std::string goodput_text(const Goodput& goodput) {
  constexpr double kShown = 0.001;
  std::string text = formatted("%.1f%% of ", 100 * goodput.share()) + duration_text(goodput.total);
  const char* between = "; ";
  for (const Goodput::Cause& cause : goodput.largest_causes()) {
    if (cause.seconds >= kShown * goodput.total && cause.seconds > 0) {
      text += between + formatted("%.1f%% ", 100 * cause.seconds / goodput.total) + cause.name;
      between = ", ";
    }
  }
  return goodput.starts > 1 ? text + "; " + counted(goodput.starts, "start") : text;
}

} // namespace mh
