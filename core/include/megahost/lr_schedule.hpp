#pragma once
/// Learning-rate schedules: a pure function of how far a run is.

#include "megahost/export.hpp"
#include "megahost/kind.hpp"

#include <cstdint>

namespace mh {

/// The work that a run has completed. Its batch may grow, so that samples are no multiple of
/// updates.
struct Completed {
  int64_t updates = 0;
  int64_t samples = 0;
};

class MH_API LrSchedule {
public:
  static constexpr Kind kKind = Kind::lr_schedule;

  struct Args {
    double lr = 0;             ///< the recipe's `optimizer.lr`: the maximum
    int64_t train_iters = 0;   ///< length of the run, for schedules that default to it
    int64_t train_samples = 0; ///< the same in samples, where the recipe gives it so; else 0
  };

  virtual ~LrSchedule();

  /// The rate of the next update: that of the first one is 0 under warm-up, as in Megatron.
  [[nodiscard]] virtual double lr(const Completed& completed) const = 0;
};

} // namespace mh
