#pragma once
/// Learning-rate schedules: a pure function of the number of completed updates.

#include "megahost/export.hpp"
#include "megahost/kind.hpp"

#include <cstdint>

namespace mh {

class MH_API LrSchedule {
public:
  static constexpr Kind kKind = Kind::lr_schedule;

  struct Args {
    double lr = 0;            ///< the recipe's `optimizer.lr`: the maximum
    int64_t train_iters = 0;  ///< length of the run, for schedules that default to it
    int64_t global_batch = 1; ///< samples of one update, for lengths given in samples
  };

  virtual ~LrSchedule();

  /// The rate of the update after `completed` updates: the first update runs at lr(0), which is 0
  /// under warm-up, as Megatron does.
  [[nodiscard]] virtual double lr(int64_t completed) const = 0;
};

} // namespace mh
