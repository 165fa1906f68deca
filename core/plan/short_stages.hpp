#pragma once
/// Steps that are put together from stages with two and with three layers.
///
/// Layers that are alike do the same, so the costs of a chunk of n layers lie on the line through
/// those of two and three layers: bytes, FLOPs and seconds of each pass. One record does for all
/// schedules and virtual stages, and no stage is recorded in its full length.
///
/// Left out are buckets of gradients that lie across layers or chunks in another way.
/// tests/plan/short_stages.cpp compares plans with recorded ones: they agree to the byte with one
/// chunk a stage, within 0.1% of them with several, and within 0.2% of their seconds.

#include "core/plan/hardware.hpp"
#include "core/plan/plan.hpp"
#include "core/plan/stage_record.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace mh {

/// The passes of a step that are recorded.
enum class ShortPasses : uint8_t {
  none,  ///< no pass: only bytes that stay from step to step
  whole, ///< for schedules whose backward passes are whole
  split, ///< and for those that split them
};

/// Steps before anything of them is recorded, for recipes that differ in their layout: what they
/// have in common is made once.
///
/// Thread:  any, several at a time
class MH_API PlannedSteps {
public:
  /// `base`: any of the recipes, for its model, and where all of them run.
  explicit PlannedSteps(const PlanTarget& base);

  /// Throws:  mh::Error where layout or schedule are refused
  [[nodiscard]] RecordedStep step(const Recipe& recipe, int64_t microbatches);

  /// A step with as few microbatches as there are chunks.
  [[nodiscard]] RecordedStep step(const Recipe& recipe);

  /// Whether layers are alike, and kept alike by the recipe's policy: then short stages do.
  [[nodiscard]] bool alike(const Recipe& recipe) const;

  /// The passes of a recipe's schedule.
  [[nodiscard]] ShortPasses passes(const Recipe& recipe);

  /// Microbatches of a step on each data rank.
  [[nodiscard]] int64_t microbatches(const Recipe& recipe) const;

private:
  Host& host_;
  std::vector<double> costs_; // costs of the model's blocks
  int64_t world_;
  at::DeviceType device_;
  std::mutex mutex_;
  std::map<std::string, RecordedStep> known_;
};

class MH_API ShortStages {
public:
  /// For all recipes that differ from the target's in schedule, virtual stages and batch.global
  /// only.
  ShortStages(const PlanTarget& target, const Machine& machine, ShortPasses passes);

  /// Bytes of the fullest stage that stay from step to step, and the program's own: no activation
  /// is in it.
  [[nodiscard]] int64_t kept(const Recipe& recipe, PlannedSteps& steps) const;

  /// Throws:  mh::Error where the schedule or the number of microbatches is refused
  [[nodiscard]] Plan plan(const Recipe& recipe, PlannedSteps& steps) const;

private:
  struct Short {
    StageRecord record;
    StageClock clock;

    Short(StageRecord made, const Machine& machine, const MeshShape& shape, bool scattered)
        : record(std::move(made))
        , clock(record, machine, shape, scattered) {}
  };

  /// A short stage's part in a stage.
  struct Share {
    /// The part of it: all; all but its passes; bytes that stay from step to step.
    enum class Of : uint8_t { all, closing, kept };

    const Short* from;
    int64_t weight;
    int32_t chunk;
    double share; ///< share of the chunk's layers that the short stage has
    Of of = Of::all;
  };

  [[nodiscard]] const Short& between() const { return *ends_.at(ends_.size() / 2); }

  [[nodiscard]] std::vector<Share> shares(const RecordedStep& step, int64_t stage) const;
  void put_together(RecordedStep& step, std::vector<std::vector<Share>>& shares) const;
  [[nodiscard]] Plan plan(const Recipe& recipe, RecordedStep step) const;

  const Machine& machine_;
  ShortPasses passes_;
  std::vector<std::unique_ptr<Short>> ends_; // first, between, last; or the only one
  std::unique_ptr<Short> longer_;            // between, with a layer more
  std::unique_ptr<Short> whole_;             // embedding, layers and head; without passes
  int64_t tokens_ = 0;                       // tokens of a sample
  std::array<double, 2> flops_{};            // FLOPs of a sample in the models with these layers
  std::array<int64_t, 2> parameters_{};
};

/// A plan of short stages where they do, and of recorded ones elsewhere.
[[nodiscard]] Plan
quick_plan(const PlanTarget& target, const Machine& machine, PlannedSteps& steps);

} // namespace mh
