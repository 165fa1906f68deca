#pragma once
/// The factor of the loss that keeps small gradients of float16 above zero.

#include "megahost/recipe.hpp"

#include <cstdint>

namespace mh {

/// Constant, or dynamic: halved after overflows, doubled after a window without any.
///
/// Source:  arXiv:1710.03740; the rule, its hysteresis included, is Megatron's (grad_scaler.py)
class LossScale {
public:
  /// The state that changes from step to step.
  struct State {
    double scale = 1;
    int64_t growth = 0;     ///< steps since the last overflow or growth
    int64_t hysteresis = 0; ///< overflows left until the scale is halved
  };

  /// The scale of precision "fp16".
  explicit LossScale(const Recipe::Fp16& options);

  [[nodiscard]] const Recipe::Fp16& options() const { return options_; }

  [[nodiscard]] double value() const { return state_.scale; }

  /// After each step; `overflow`: its gradients are not finite, and it is skipped.
  void update(bool overflow);

  /// An overflow cannot lower it any more.
  [[nodiscard]] bool lowest() const;

  [[nodiscard]] const State& state() const { return state_; }

  /// Goes on where another one was; a constant scale stays the recipe's.
  void restore(const State& state);

private:
  Recipe::Fp16 options_;
  State state_;
};

} // namespace mh
