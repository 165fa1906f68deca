#pragma once
/// How long what was recorded takes on a machine: GEMMs by shape, memory-bound operations by bytes,
/// collectives by latency and rate of the slowest level they cross.

#include "core/plan/hardware.hpp"
#include "core/plan/stage_record.hpp"

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace mh {

/// Seconds of one event that computes.
[[nodiscard]] double event_time(const PlanEvent& event, const Machine& machine);

/// Seconds of a collective or transfer that nothing disturbs.
///
/// Source:  ring algorithms: an all-reduce moves 2 (n - 1) / n of the bytes through each rank's
///          slowest link, an all-gather or reduce-scatter (n - 1) / n of the whole
[[nodiscard]] double collective_time(const PlannedCollective& collective, const Machine& machine);

/// A collective that goes on when the pass that began it is over.
struct Outstanding {
  size_t collective;
  double begin; ///< seconds after the pass' begin
};

/// The parts of a pass's time.
struct PassTime {
  double products = 0, attention = 0, memory = 0;
  std::map<std::string, double> exposed; ///< waiting for collectives, by mesh axis
  std::vector<Outstanding> outstanding;

  [[nodiscard]] double compute() const { return products + attention + memory; }

  [[nodiscard]] double total() const;

  /// Adds another's times, `weight` times each; nothing of it stays outstanding.
  void add(const PassTime& other, double weight = 1);
};

/// Times events one after the other; collectives overlap what is computed until they are waited
/// for, those of one axis one after the other. The schedule times waits for collectives that the
/// pass did not begin: transfers between stages.
/// `under_way`: when collectives that passes before began are over, in seconds after this one's
/// begin.
[[nodiscard]] PassTime pass_time(
    std::span<const PlanEvent> events,
    const std::vector<PlannedCollective>& collectives,
    const Machine& machine,
    const std::map<size_t, double>& under_way = {}
);

} // namespace mh
