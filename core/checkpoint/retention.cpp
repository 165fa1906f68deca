#include "core/checkpoint/retention.hpp"

#include "core/base/seconds.hpp"
#include "core/checkpoint/detect_format.hpp"
#include "core/model/plugin_call.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace mh {

namespace {

constexpr double kHour = 3600;

std::unique_ptr<CheckpointReader>
open(const CheckpointFormat& format, const Path& folder, int64_t step) {
  return in_plugin(format, "open", [&] { return format.open(folder, step); });
}

/// The facts in a checkpoint's state; none of one that cannot be opened.
SavedStep saved_step(const CheckpointFormat& format, const Path& folder, int64_t step) {
  SavedStep saved{.step = step};
  try {
    const auto state = nlohmann::json::parse(open(format, folder, step)->state());
    if (const auto time = state.find("time"); time != state.end() && time->is_number()) {
      saved.time = time->get<double>();
    }
    if (const auto loss = state.find("validation_loss"); loss != state.end() && loss->is_number()) {
      saved.loss = loss->get<double>();
    }
  } catch (const Error&) {
  } catch (const nlohmann::json::exception&) {
  }
  return saved;
}

/// The steps with the lowest losses; of equal ones the newest.
std::set<int64_t> best_steps(std::vector<SavedStep> steps, int64_t count) {
  std::erase_if(steps, [](const SavedStep& one) { return !one.loss; });
  std::stable_sort(steps.begin(), steps.end(), [](const SavedStep& a, const SavedStep& b) {
    return *a.loss < *b.loss;
  });
  std::set<int64_t> best;
  for (const SavedStep& one : steps) {
    if (std::ssize(best) < count) {
      best.insert(one.step);
    }
  }
  return best;
}

/// The first step of each span.
std::set<int64_t> first_steps(const std::vector<SavedStep>& steps, double hours) {
  std::map<double, int64_t> first;
  for (const SavedStep& one : steps) { // newest first: the last one of a span counts
    if (one.time) {
      first[std::floor(*one.time / (kHour * hours))] = one.step;
    }
  }
  std::set<int64_t> kept;
  for (const auto& [span, step] : first) {
    kept.insert(step);
  }
  return kept;
}

void require_whole(const CheckpointFormat& format, const Path& folder, int64_t step) {
  const auto saved = open(format, folder, step);
  const Verification found =
      in_plugin(format, "verify", [&] { return saved->verify([](uint64_t) {}); });
  if (!found.damages.empty()) {
    throw Error(found.damages.front(), "", exit_code::data);
  }
}

} // namespace

Retention retention_of(const Recipe::Checkpoint& recipe) {
  return {
      .keep = recipe.keep,
      .every = recipe.keep_every,
      .best = recipe.keep_best,
      .for_hours = recipe.keep_for,
      .per_hours = recipe.keep_per};
}

std::vector<int64_t>
old_steps(const std::vector<SavedStep>& steps, const Retention& retention, double now) {
  std::set<int64_t> kept = best_steps(steps, retention.best);
  if (retention.per_hours > 0) {
    kept.merge(first_steps(steps, retention.per_hours));
  }
  std::vector<int64_t> old;
  for (size_t i = 0; i < steps.size() && retention.keep > 0; ++i) {
    const SavedStep& one = steps[i];
    const bool newest = static_cast<int64_t>(i) < retention.keep;
    const bool divided = retention.every > 0 && one.step % retention.every == 0;
    const bool young = one.time && now - *one.time < kHour * retention.for_hours;
    if (!newest && !divided && !young && !kept.contains(one.step)) {
      old.push_back(one.step);
    }
  }
  return old;
}

std::vector<int64_t> old_checkpoints(
    const CheckpointFormat& format,
    const Path& folder,
    const Retention& retention,
    const StepFolder::Warn& warn
) {
  const auto steps = steps_of(format, folder).value_or(std::vector<int64_t>());
  const bool looks = retention.best > 0 || retention.for_hours > 0 || retention.per_hours > 0;
  std::vector<SavedStep> saved;
  for (const int64_t step : steps) {
    saved.push_back(looks ? saved_step(format, folder, step) : SavedStep{.step = step});
  }
  std::vector<int64_t> old = old_steps(saved, retention, unix_now());
  if (!old.empty()) {
    const auto whole = newest_step(
        format.place(folder),
        steps,
        [&](int64_t step) { require_whole(format, folder, step); },
        warn
    );
    std::erase_if(old, [whole](int64_t step) { return step == whole; });
  }
  return old;
}

void remove_old_checkpoints(
    const CheckpointFormat& format,
    const Path& folder,
    const Retention& retention,
    const StepFolder::Warn& warn
) {
  if (retention.keep == 0) {
    return;
  }
  try {
    for (const int64_t step : old_checkpoints(format, folder, retention, warn)) {
      in_plugin(format, "remove", [&] { format.remove(folder, step); });
    }
  } catch (const Error& error) {
    warn(std::string("old checkpoints are not removed: ") + error.what());
  }
}

} // namespace mh
