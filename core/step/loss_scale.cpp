#include "core/step/loss_scale.hpp"

#include <algorithm>

namespace mh {

LossScale::LossScale(const Recipe::Fp16& options)
    : options_(options)
    , state_{
          .scale = options.loss_scale.value_or(options.initial_scale),
          .growth = 0,
          .hysteresis = options.hysteresis} {}

void LossScale::update(bool overflow) {
  if (options_.loss_scale) {
    return;
  }
  if (overflow) {
    state_.growth = 0;
    state_.hysteresis -= 1;
    if (state_.hysteresis <= 0) {
      state_.scale = std::max(state_.scale / 2, options_.min_scale);
    }
    return;
  }
  state_.growth += 1;
  if (state_.growth == options_.window) {
    state_ = {.scale = 2 * state_.scale, .growth = 0, .hysteresis = options_.hysteresis};
  }
}

bool LossScale::lowest() const {
  return options_.loss_scale.has_value() || state_.scale <= options_.min_scale;
}

void LossScale::restore(const State& state) {
  if (!options_.loss_scale) {
    state_ = state;
  }
}

} // namespace mh
