#pragma once
/// The judgement of a step: whether its loss and gradients are good enough for an update.
///
/// The losses and the norm that are judged are those of all ranks, so all ranks decide alike; and
/// the judgement is made before any weight, optimizer state or history is touched.

#include "core/records/robust_z.hpp"
#include "core/step/loss_scale.hpp"
#include "core/step/step.hpp"
#include "megahost/recipe.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mh {

enum class Verdict : uint8_t {
  update,
  skip,   ///< no update; the run goes on with the next batch
  rewind, ///< back to the newest checkpoint, without the data since then
  stop,
};

struct Judgement {
  Verdict verdict = Verdict::update;
  std::string why{};     ///< "the lm loss is nan"; empty for an update
  bool overflow = false; ///< float16 gradients overflowed, as expected now and then
};

/// The part of the guards that a checkpoint keeps.
struct GuardState {
  std::optional<LossScale::State> loss_scale{};
  std::vector<double> losses{}; ///< losses of the last updates, the oldest first
  int64_t skipped = 0;          ///< steps of the run without an update
  int64_t rewinds = 0;          ///< rewinds of the run
  int64_t skipped_samples = 0;  ///< left out by rewinds: data go on at consumed + skipped
};

class Guards {
public:
  explicit Guards(const Recipe& recipe);

  /// Judges a step, once, before its update.
  [[nodiscard]] Judgement judge(const StepResult& result);

  /// Why a step's numbers may come from a fault, so that it is worth doing again; empty if they are
  /// good. Overflows of float16 are expected, and of bad steps in a row the first is done again.
  [[nodiscard]] std::string doubt(const StepResult& result) const;

  /// The factor of the next step's loss: 1 but in float16.
  [[nodiscard]] double loss_scale() const { return scale_ ? scale_->value() : 1; }

  [[nodiscard]] bool scales() const { return scale_.has_value(); }

  /// Applies a rewind that leaves out `samples` samples; everything else is the checkpoint's.
  void rewound(const GuardState& saved, int64_t skipped_samples);

  [[nodiscard]] GuardState state() const;
  void restore(const GuardState& state);

  /// Steps of the run without an update.
  [[nodiscard]] int64_t skipped() const { return skipped_; }

  [[nodiscard]] int64_t skipped_samples() const { return skipped_samples_; }

  /// The warning of a run of `steps` that skipped all of them: why, and what to do.
  [[nodiscard]] std::string no_update_text(int64_t steps) const;

private:
  [[nodiscard]] Judgement act(const std::string& action, std::string why);
  [[nodiscard]] Judgement overflow();
  [[nodiscard]] std::string spike(const StepResult& result) const;
  [[nodiscard]] Judgement skip(std::string why, bool counts);

  Recipe::Guards options_;
  std::optional<LossScale> scale_;
  RobustZ losses_;
  int64_t skipped_ = 0;
  int64_t in_a_row_ = 0; // skipped steps that count against guards.skips
  int64_t rewinds_ = 0;
  int64_t skipped_samples_ = 0;
};

/// A sentence on the numbers of a step that is not finite: "the lm loss is nan".
[[nodiscard]] std::string bad_numbers(const StepResult& result);

} // namespace mh
