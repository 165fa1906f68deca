#pragma once
/// Learning rate and weight decay of each update, as the recipe says or, for a run that is resumed,
/// as its checkpoint does.

#include "megahost/export.hpp"
#include "megahost/host.hpp"
#include "megahost/lr_schedule.hpp"
#include "megahost/recipe.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// The terms that decide the rates of a run.
struct ScheduleTerms {
  double lr = 0, weight_decay = 0;
  std::string weight_decay_schedule = "constant";
  std::optional<double> weight_decay_start;
  PluginSection lr_schedule; ///< its options are complete
  bool by_samples = false;
  int64_t length = 0; ///< length of the run, in updates or in samples
};

[[nodiscard]] MH_API ScheduleTerms schedule_terms(const Recipe& recipe);

class MH_API UpdateSchedule {
public:
  /// Throws:  mh::Error if the schedule's own values contradict one another
  UpdateSchedule(ScheduleTerms terms, Host& host);

  /// The learning rate of the next update.
  [[nodiscard]] double lr(const Completed& completed) const;

  /// Goes from `weight_decay_start` to `weight_decay` over the run.
  ///
  /// Source:  Megatron Core, optimizer_param_scheduler.py, get_wd
  [[nodiscard]] double weight_decay(const Completed& completed) const;

  /// The terms on one line, with the keys of a recipe: what a checkpoint keeps for `resumed`.
  [[nodiscard]] std::string text() const;

private:
  ScheduleTerms terms_;
  std::unique_ptr<LrSchedule> lr_;
};

/// Learning rates of the update after a run's last, where the run goes on for longer.
struct LongerRun {
  double kept = 0;   ///< by the schedule that it had: lr_schedule.on_resume = "checkpoint"
  double recipe = 0; ///< by the recipe's schedule over the new length
};

/// `length`: the new train.iters, or train.samples where the recipe has that.
[[nodiscard]] LongerRun rates_of_longer_run(
    const Recipe& recipe,
    const UpdateSchedule& schedule,
    const Completed& completed,
    int64_t length,
    Host& host
);

/// The schedule of a run that continues from a checkpoint with the schedule `saved`:
/// `lr_schedule.on_resume` decides which of the two applies. If they differ, `notes` gets a
/// sentence.
[[nodiscard]] UpdateSchedule resumed(
    const Recipe& recipe, const std::string& saved, Host& host, std::vector<std::string>& notes
);

} // namespace mh
