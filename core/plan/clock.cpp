#include "core/plan/clock.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string_view>
#include <utility>

namespace mh {

namespace {

using What = PlanEvent::Kind;

/// Tiles that libraries cut results into, and the part of the best rate that each reaches.
struct Tile {
  double m, n, rate;
};

constexpr std::array<Tile, 6> kTiles{
    {{128, 256, 1},
     {256, 128, 1},
     {128, 128, 0.92},
     {64, 128, 0.75},
     {128, 64, 0.75},
     {64, 64, 0.6}}};
constexpr std::array<double, 4> kSplits{1, 2, 4, 8}; // of k, where there are few tiles

double product_seconds(const PlanEvent& event, const Machine& machine) {
  const auto& fit = machine.calibration;
  const double peak = machine.hardware.peak(event.type) * fit.product;
  if (peak == 0) {
    return 0;
  }
  const auto processors = static_cast<double>(machine.hardware.processors);
  double best = 0;
  for (const auto& [m, n, rate] : kTiles) {
    const double tiles = std::ceil(static_cast<double>(event.m) / m) *
                         std::ceil(static_cast<double>(event.n) / n) *
                         static_cast<double>(event.batch);
    for (const double split : kSplits) {
      const double waves = std::ceil(tiles * split / processors);
      const double steps = static_cast<double>(event.k) / split + fit.product_fill;
      const double seconds = waves * 2 * m * n * steps / (peak * rate / processors);
      best = best == 0 ? seconds : std::min(best, seconds);
    }
  }
  return best;
}

double memory_seconds(double bytes, const Machine& machine) {
  const auto& hardware = machine.hardware;
  const bool cached = bytes < hardware.cache_mib * 1048576;
  const double rate =
      cached ? hardware.cache_tb_s : hardware.memory_tb_s * machine.calibration.memory;
  return bytes / (1e12 * rate);
}

/// Fused, or as products that write all their scores: two forward, four backward.
double attention_seconds(const PlanEvent& event, const Machine& machine) {
  const auto& fit = machine.calibration;
  if (fit.score_bytes == 0) {
    const double peak = machine.hardware.peak(event.type) * fit.attention;
    return std::max(event.flops / peak, memory_seconds(event.bytes, machine));
  }
  const double passes = event.backward ? 2 : 1;
  PlanEvent scores = event, values = event;
  std::swap(values.n, values.k); // scores: [m, dim] x [dim, n]; values: [m, n] x [n, dim]
  const double pairs = static_cast<double>(event.batch) * static_cast<double>(event.m) *
                       static_cast<double>(event.n);
  return passes * (product_seconds(scores, machine) + product_seconds(values, machine) +
                   memory_seconds(pairs * fit.score_bytes, machine));
}

/// Of a rank's links to the other members of a group.
struct Level {
  double bytes_per_second, latency;
};

Level level_of(const PlannedCollective& collective, const Machine& machine) {
  const auto& hardware = machine.hardware;
  const auto& fit = machine.calibration;
  const auto& members = collective.group->members;
  const Level links{1e9 * hardware.link_gb_s * fit.link, 1e-6 * fit.link_us};
  std::map<int64_t, int64_t> by_node;
  if (collective.peer >= 0) { // the neighbours of a ring, or of a pipeline
    by_node[members.front() / hardware.ranks_per_node] = 1;
    by_node[members.at(1) / hardware.ranks_per_node] += 1;
  } else {
    for (const int64_t rank : members) {
      ++by_node[rank / hardware.ranks_per_node];
    }
  }
  if (by_node.size() == 1) {
    return links;
  }
  // A ring leaves a node once, whoever of its ranks are in the group; the others' groups leave,
  // too.
  int64_t neighbours = hardware.ranks_per_node;
  for (const auto& [node, ranks] : by_node) {
    neighbours = std::min(neighbours, ranks);
  }
  const double rate = 1e9 * hardware.network_gb_s * fit.network * static_cast<double>(neighbours);
  return {
      std::min(rate, links.bytes_per_second > 0 ? links.bytes_per_second : rate),
      1e-6 * fit.network_us};
}

} // namespace

double event_time(const PlanEvent& event, const Machine& machine) {
  const auto& fit = machine.calibration;
  const double launch = 1e-6 * fit.launch_us;
  switch (event.kind) {
  case What::product:
    return std::max(
        launch, std::max(product_seconds(event, machine), memory_seconds(event.bytes, machine))
    );
  case What::attention:
    return std::max(launch, attention_seconds(event, machine));
  case What::memory:
    return std::max(launch, memory_seconds(event.bytes, machine));
  case What::start:
  case What::wait:
    break;
  }
  return 0;
}

double collective_time(const PlannedCollective& collective, const Machine& machine) {
  const auto n = static_cast<double>(collective.group->members.size());
  const auto bytes = static_cast<double>(collective.bytes);
  const auto [rate, latency] = level_of(collective, machine);
  const std::string_view name = collective.name;
  if (collective.host || n < 2) {
    return 0;
  }
  if (rate <= 0) {
    return latency;
  }
  const double rounds = std::ceil(std::log2(n)); // trees carry what is short
  if (name == "all-reduce") {
    return 2 * rounds * latency + 2 * (n - 1) / n * bytes / rate;
  }
  if (name == "all-gather") { // the input is a rank's part
    return rounds * latency + (n - 1) * bytes / rate;
  }
  if (name == "reduce-scatter" || name == "all-to-all") {
    return rounds * latency + (n - 1) / n * bytes / rate;
  }
  return latency + bytes / rate;
}

double PassTime::total() const {
  double sum = compute();
  for (const auto& [axis, seconds] : exposed) {
    sum += seconds;
  }
  return sum;
}

PassTime pass_time(
    std::span<const PlanEvent> events,
    const std::vector<PlannedCollective>& collectives,
    const Machine& machine,
    const std::map<size_t, double>& under_way
) {
  PassTime time;
  double now = 0;
  std::map<std::string, double> free; // when an axis' collective before is over
  std::map<size_t, Outstanding> begun;
  std::map<size_t, double> over = under_way;
  for (const auto& [number, end] : under_way) {
    double& last = free[collectives[number].group->axis];
    last = std::max(last, end);
  }
  for (const auto& event : events) {
    if (event.kind == What::start || event.kind == What::wait) {
      const auto& collective = collectives[event.collective];
      const std::string& axis = collective.group->axis;
      if (event.kind == What::start) {
        double& end = free[axis];
        begun[event.collective] = {event.collective, now};
        const bool sends = std::string_view(collective.name) == "send"; // beside what it receives
        end = std::max(end, now) + (sends ? 0 : collective_time(collective, machine));
        over[event.collective] = end;
      } else if (over.contains(event.collective)) {
        begun.erase(event.collective);
        const double waits = std::max(0.0, over[event.collective] - now);
        time.exposed[axis] += waits;
        now += waits;
      }
      continue;
    }
    const double seconds = event_time(event, machine);
    now += seconds;
    (event.kind == What::product     ? time.products
     : event.kind == What::attention ? time.attention
                                     : time.memory) += seconds;
  }
  for (const auto& [number, one] : begun) {
    time.outstanding.push_back(one);
  }
  return time;
}

} // namespace mh
