#pragma once
/// Learning rate and weight decay of each update, as the recipe says or, for a run that is resumed,
/// as its checkpoint does.

#include "megahost/export.hpp"
#include "megahost/host.hpp"
#include "megahost/lr_schedule.hpp"
#include "megahost/recipe.hpp"
#include "megahost/value.hpp"

#include <memory>
#include <string>
#include <vector>

namespace mh {

class MH_API Schedule {
public:
  /// What decides the rates: the same keys as in a recipe. A checkpoint keeps them as text.
  [[nodiscard]] static Value terms(const Recipe& recipe);

  /// Throws:  mh::Error if the schedule's own values contradict one another
  Schedule(Value terms, Host& host);

  /// The learning rate of the next update.
  [[nodiscard]] double lr(const Completed& completed) const;

  /// From `weight_decay_start` to `weight_decay` over the run.
  ///
  /// Source:  Megatron Core, optimizer_param_scheduler.py, get_wd
  [[nodiscard]] double weight_decay(const Completed& completed) const;

  /// The terms on one line, for `resumed`.
  [[nodiscard]] std::string text() const;

private:
  Value terms_;
  std::unique_ptr<LrSchedule> lr_;
  bool by_samples_ = false;
  double length_ = 0, start_ = 0, end_ = 0;
  std::string form_;
};

/// Learning rates of the update after a run's last, where the run goes on for longer.
struct LongerRun {
  double kept = 0;   ///< by the schedule that it had: lr_schedule.on_resume = "checkpoint"
  double recipe = 0; ///< by the recipe's schedule over the new length
};

/// `length`: the new train.iters, or train.samples where the recipe has that.
[[nodiscard]] LongerRun rates_of_longer_run(
    const Recipe& recipe,
    const Schedule& schedule,
    const Completed& completed,
    int64_t length,
    Host& host
);

/// The schedule of a run that goes on from a checkpoint with the schedule `saved`: which of the two
/// applies, `lr_schedule.on_resume` says. Where they differ `notes` gets a sentence.
[[nodiscard]] Schedule resumed(
    const Recipe& recipe, const std::string& saved, Host& host, std::vector<std::string>& notes
);

} // namespace mh
