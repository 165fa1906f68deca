#include "core/step/update_schedule.hpp"

#include "core/language/read.hpp"
#include "core/model/plugin_call.hpp"
#include "core/recipe/commands.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace mh {

namespace {

/// The same keys as in a recipe.
Value as_value(const ScheduleTerms& terms) {
  Table optimizer{
      {"lr", terms.lr},
      {"weight_decay", terms.weight_decay},
      {"weight_decay_schedule", terms.weight_decay_schedule}};
  if (terms.weight_decay_start) {
    optimizer.set("weight_decay_start", *terms.weight_decay_start);
  }
  Table schedule{{"use", terms.lr_schedule.use}};
  for (const auto& entry : terms.lr_schedule.options.as_table()) {
    schedule.set(entry.key, entry.value);
  }
  return Table{
      {"optimizer", std::move(optimizer)},
      {"lr_schedule", std::move(schedule)},
      {"train", Table{{terms.by_samples ? "samples" : "iters", terms.length}}}};
}

/// The terms that `Schedule::text` wrote.
ScheduleTerms saved_terms(const std::string& saved, Host& host) {
  const Value document = read_toml(std::make_shared<const Source>(Source{
      "the checkpoint's schedule", "schedule = " + saved + "\n", "checkpoint"}));
  const Value& value = *document.find("schedule");
  const auto at = [&value](const char* path) -> const Value& { return *value.find_path(path); };
  ScheduleTerms terms{
      .lr = at("optimizer.lr").as_number(),
      .weight_decay = at("optimizer.weight_decay").as_number(),
      .weight_decay_schedule = at("optimizer.weight_decay_schedule").as_string(),
      .weight_decay_start = std::nullopt,
      .lr_schedule = plugin_named(at("lr_schedule")),
      .by_samples = value.find_path("train.samples") != nullptr};
  if (const Value* start = value.find_path("optimizer.weight_decay_start")) {
    terms.weight_decay_start = start->as_number();
  }
  terms.length = at(terms.by_samples ? "train.samples" : "train.iters").as_integer();
  (void)Registry::checked( // a person may have edited it
      host.require(Kind::lr_schedule, terms.lr_schedule.use),
      terms.lr_schedule.options
  );
  return terms;
}

std::string text_of(const std::optional<Value>& value) {
  return value ? to_text(*value) : "none";
}

/// "optimizer.lr 0.1 (there 0.2), ..."
std::string differences_text(const Value& used, const Value& other, const std::string& whose) {
  std::string text;
  for (const auto& difference : differences(used, other)) {
    text += (text.empty() ? "" : ", ") + difference.key + " " + text_of(difference.left) + " (" +
            whose + " " + text_of(difference.right) + ")";
  }
  return text;
}

/// Whether two schedules say the same numbers over both of their lengths: a constant rate does not
/// ask how long a run is.
bool same_values(const UpdateSchedule& a, const UpdateSchedule& b, int64_t length) {
  constexpr int64_t kPoints = 64;
  for (int64_t point = 0; point <= kPoints; ++point) {
    const int64_t count = length / kPoints * point + length % kPoints * point / kPoints;
    const Completed completed{.updates = count, .samples = count};
    if (a.lr(completed) != b.lr(completed) ||
        a.weight_decay(completed) != b.weight_decay(completed)) {
      return false;
    }
  }
  return true;
}

} // namespace

ScheduleTerms schedule_terms(const Recipe& recipe) {
  return {
      .lr = recipe.optimizer.lr,
      .weight_decay = recipe.optimizer.weight_decay,
      .weight_decay_schedule = recipe.optimizer.weight_decay_schedule,
      .weight_decay_start = recipe.optimizer.weight_decay_start,
      .lr_schedule = recipe.lr_schedule,
      .by_samples = !recipe.train.iters,
      .length = recipe.train.iters ? *recipe.train.iters : recipe.train.samples.value_or(0)};
}

UpdateSchedule::UpdateSchedule(ScheduleTerms terms, Host& host)
    : terms_(std::move(terms))
    , lr_(host.make<LrSchedule>(
          terms_.lr_schedule,
          {.lr = terms_.lr,
           .train_iters = terms_.by_samples ? 0 : terms_.length,
           .train_samples = terms_.by_samples ? terms_.length : 0}
      )) {}

double UpdateSchedule::lr(const Completed& completed) const {
  const double rate = in_plugin(*lr_, "lr", [&] { return lr_->lr(completed); });
  if (!(rate >= 0) || std::isinf(rate)) {
    throw Error(
        "the lr_schedule " + terms_.lr_schedule.use + " gives the learning rate " +
            std::to_string(rate) + " after " + std::to_string(completed.updates) + " updates",
        "rates are finite, and 0 or more; megahost plugins check tests its file",
        exit_code::numbers
    );
  }
  return rate;
}

double UpdateSchedule::weight_decay(const Completed& completed) const {
  const double end = terms_.weight_decay, start = terms_.weight_decay_start.value_or(0);
  if (terms_.weight_decay_schedule == "constant") {
    return end;
  }
  const auto now = static_cast<double>(terms_.by_samples ? completed.samples : completed.updates);
  const double r = std::min(1.0, now / static_cast<double>(terms_.length));
  const double share = terms_.weight_decay_schedule == "linear"
                           ? r
                           : 0.5 * (std::cos(std::numbers::pi * (1 - r)) + 1);
  return start + (end - start) * share;
}

std::string UpdateSchedule::text() const {
  return to_text(as_value(terms_));
}

LongerRun rates_of_longer_run(
    const Recipe& recipe,
    const UpdateSchedule& schedule,
    const Completed& completed,
    int64_t length,
    Host& host
) {
  Recipe longer = recipe;
  (longer.train.iters ? longer.train.iters : longer.train.samples) = length;
  return {
      .kept = schedule.lr(completed),
      .recipe = UpdateSchedule(schedule_terms(longer), host).lr(completed)};
}

UpdateSchedule resumed(
    const Recipe& recipe, const std::string& saved, Host& host, std::vector<std::string>& notes
) {
  const ScheduleTerms ours = schedule_terms(recipe);
  if (saved.empty()) { // written before checkpoints kept it
    return {ours, host};
  }
  const ScheduleTerms theirs = saved_terms(saved, host);
  const bool keep = recipe.lr_schedule.on_resume == "checkpoint";
  const ScheduleTerms &used = keep ? theirs : ours, &other = keep ? ours : theirs;
  UpdateSchedule schedule(used, host);
  const std::string changed =
      differences_text(as_value(used), as_value(other), keep ? "recipe" : "checkpoint");
  const bool same = used.by_samples == other.by_samples &&
                    same_values(schedule, {other, host}, std::max(used.length, other.length));
  if (!changed.empty() && !same) {
    notes.push_back(
        keep ? "learning rate and weight decay go on as the checkpoint says: " + changed
             : "learning rate and weight decay go on as the recipe says: " + changed +
                   "; lr_schedule.on_resume = \"checkpoint\" keeps the checkpoint's"
    );
  }
  return schedule;
}

} // namespace mh
