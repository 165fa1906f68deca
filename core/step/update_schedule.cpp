#include "core/step/update_schedule.hpp"

#include "core/language/read.hpp"
#include "core/model/plugin_call.hpp"
#include "core/recipe/commands.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace mh {

namespace {

double number(const Value& terms, const char* path, double absent = 0) {
  const Value* value = terms.find_path(path);
  return value != nullptr ? value->as_number() : absent;
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

} // namespace

Value Schedule::terms(const Recipe& recipe) {
  const auto& optimizer = recipe.optimizer;
  Table own{
      {"lr", optimizer.lr},
      {"weight_decay", optimizer.weight_decay},
      {"weight_decay_schedule", optimizer.weight_decay_schedule}};
  if (optimizer.weight_decay_start) {
    own.set("weight_decay_start", *optimizer.weight_decay_start);
  }
  Table schedule{{"use", recipe.lr_schedule.use}};
  for (const auto& entry : recipe.lr_schedule.options.as_table()) {
    schedule.set(entry.key, entry.value);
  }
  Table length;
  if (recipe.train.iters) {
    length.set("iters", *recipe.train.iters);
  } else {
    length.set("samples", recipe.train.samples.value_or(0));
  }
  return Table{
      {"optimizer", std::move(own)},
      {"lr_schedule", std::move(schedule)},
      {"train", std::move(length)}};
}

Schedule::Schedule(Value terms, Host& host)
    : terms_(std::move(terms))
    , by_samples_(terms_.find_path("train.samples") != nullptr)
    , length_(number(terms_, by_samples_ ? "train.samples" : "train.iters"))
    , start_(number(terms_, "optimizer.weight_decay_start"))
    , end_(number(terms_, "optimizer.weight_decay"))
    , form_(terms_.find_path("optimizer.weight_decay_schedule")->as_string()) {
  Table options = terms_.find("lr_schedule")->as_table();
  const std::string use = options.find("use")->as_string();
  options.erase("use");
  lr_ = host.make<LrSchedule>(
      use,
      options,
      {.lr = number(terms_, "optimizer.lr"),
       .train_iters = by_samples_ ? 0 : static_cast<int64_t>(length_),
       .train_samples = by_samples_ ? static_cast<int64_t>(length_) : 0}
  );
}

double Schedule::lr(const Completed& completed) const {
  return in_plugin(*lr_, "lr", [&] { return lr_->lr(completed); });
}

double Schedule::weight_decay(const Completed& completed) const {
  if (form_ == "constant") {
    return end_;
  }
  const auto now = static_cast<double>(by_samples_ ? completed.samples : completed.updates);
  const double r = std::min(1.0, now / length_);
  const double share = form_ == "linear" ? r : 0.5 * (std::cos(std::numbers::pi * (1 - r)) + 1);
  return start_ + (end_ - start_) * share;
}

std::string Schedule::text() const {
  return to_text(terms_);
}

LongerRun rates_of_longer_run(
    const Recipe& recipe,
    const Schedule& schedule,
    const Completed& completed,
    int64_t length,
    Host& host
) {
  Recipe longer = recipe;
  (longer.train.iters ? longer.train.iters : longer.train.samples) = length;
  return {
      .kept = schedule.lr(completed),
      .recipe = Schedule(Schedule::terms(longer), host).lr(completed)};
}

Schedule resumed(
    const Recipe& recipe, const std::string& saved, Host& host, std::vector<std::string>& notes
) {
  const Value ours = Schedule::terms(recipe);
  if (saved.empty()) { // written before checkpoints kept it
    return {ours, host};
  }
  const Value document = read_toml(std::make_shared<const Source>(Source{
      "the checkpoint's schedule", "schedule = " + saved + "\n", "checkpoint"}));
  const Value& theirs = *document.find("schedule");
  const bool keep = recipe.lr_schedule.on_resume == "checkpoint";
  const Value& used = keep ? theirs : ours;
  const std::string changed =
      differences_text(used, keep ? ours : theirs, keep ? "recipe" : "checkpoint");
  if (!changed.empty()) {
    notes.push_back(
        keep ? "learning rate and weight decay go on as the checkpoint says: " + changed
             : "learning rate and weight decay go on as the recipe says: " + changed +
                   "; lr_schedule.on_resume = \"checkpoint\" keeps the checkpoint's"
    );
  }
  return {used, host};
}

} // namespace mh
