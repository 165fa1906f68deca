#pragma once
/// A stage's record by the clock of a machine, and stages that are made of several records.

#include "core/plan/clock.hpp"
#include "core/plan/stage_record.hpp"
#include "core/step/pipeline_lists.hpp"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace mh {

/// Keeps references to what it is made of.
class StageClock {
public:
  /// `scattered`: see Calibration.
  StageClock(
      const StageRecord& record, const Machine& machine, const MeshShape& shape, bool scattered
  );

  [[nodiscard]] const ByPass<PassTime>& passes() const { return passes_; }

  /// Seconds of the longest of what one instruction sends.
  [[nodiscard]] double transfer() const { return transfer_; }

  /// A stage that the record stands for.
  struct Stage {
    const std::vector<TimedPass>& passes; ///< passes of a step, on the stage
    int64_t microbatches;
    std::optional<int32_t> chunk{}; ///< the one that is the record's only one; absent: all are
                                    ///< the record's
    double share = 1;               ///< share of the stage's layers that the record has

    /// The record's name of an instruction; nothing: it has none.
    [[nodiscard]] std::optional<Instruction> recorded(Instruction one) const {
      if (chunk && *chunk != one.chunk) {
        return std::nullopt;
      }
      one.chunk = chunk ? 0 : one.chunk;
      return one;
    }
  };

  /// The work after the last pass: the rest of the gradients' sums and the norm; the update.
  [[nodiscard]] std::pair<PassTime, PassTime> close(const Stage& stage) const;

  /// How much longer a stage's first passes take because values that the step before sent arrive
  /// overlapped with them.
  [[nodiscard]] PassTime late(const Stage& stage) const;

private:
  [[nodiscard]] double longest_transfer() const;
  [[nodiscard]] double transfer_time(const PlannedCollective& transfer) const;

  const StageRecord& record_;
  const Machine& machine_;
  int64_t parts_; // that a transfer is sent in
  ByPass<PassTime> passes_;
  double transfer_ = 0;
};

/// A stage as a sum of records.
struct TimedStage {
  struct Part {
    const StageClock* clock;
    double weight = 1;              ///< how often it counts
    std::optional<int32_t> chunk{}; ///< see StageClock::Stage
    double share = 1;
  };

  std::vector<std::vector<Part>> chunks; ///< passes of each chunk of the stage
  std::vector<Part> closing;             ///< events after and before them

  /// One record, all of it.
  static TimedStage whole(const StageClock& clock, int64_t chunks) {
    const std::vector<Part> all{{&clock}};
    return {std::vector(static_cast<size_t>(chunks), all), all};
  }

  [[nodiscard]] ByPass<PassTime> passes() const;
  [[nodiscard]] double transfer() const;
  [[nodiscard]] std::pair<PassTime, PassTime>
  close(const std::vector<TimedPass>& passes, int64_t microbatches) const;
  [[nodiscard]] PassTime late(const std::vector<TimedPass>& passes, int64_t microbatches) const;
};

} // namespace mh
