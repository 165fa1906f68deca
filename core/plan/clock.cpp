#include "core/plan/clock.hpp"

#include "core/plan/rates.hpp"

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
    const double waves = std::ceil(tiles / processors);
    const double steps = static_cast<double>(event.k) + fit.product_fill;
    const double seconds = waves * 2 * m * n * steps / (peak * rate / processors);
    best = best == 0 ? seconds : std::min(best, seconds);
  }
  return best;
}

/// The bytes that an event moves through memory in the program that is timed.
double bytes_of(const PlanEvent& event, const Calibration& fit) {
  const std::string_view name = event.name;
  if (fit.update_bytes > 0 && name == "megahost::update_") {
    return fit.update_bytes * static_cast<double>(event.m);
  }
  if (fit.loss_bytes > 0 && name.starts_with("megahost::vocab_")) { // one forward, one backward
    return fit.loss_bytes / 2 * static_cast<double>(event.m);
  }
  return event.bytes - (fit.fused ? event.chained : 0);
}

double memory_seconds(double bytes, const Machine& machine) {
  const auto& hardware = machine.hardware;
  const bool cached = bytes < hardware.cache_mib * 1048576;
  const double rate =
      cached ? hardware.cache_tb_s : hardware.memory_tb_s * machine.calibration.memory;
  return bytes / (1e12 * rate);
}

/// Fused, or as GEMMs that write all their scores: two forward, four backward.
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

/// A rank's links to the other members of a group.
struct LinkLevel {
  double bytes_per_second, latency;
  double channels = 1; ///< share of the channels that a collective uses
};

LinkLevel level_of(const PlannedCollective& collective, const Machine& machine) {
  const auto& hardware = machine.hardware;
  const auto& fit = machine.calibration;
  const auto& members = collective.group->members;
  const LinkLevel links{1e9 * hardware.link_gb_s * fit.link, 1e-6 * fit.link_us};
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
  const double reached = collective.peer >= 0 ? fit.transfer : fit.network;
  const double rate = 1e9 * hardware.network_gb_s * reached * static_cast<double>(neighbours);
  return {
      std::min(rate, links.bytes_per_second > 0 ? links.bytes_per_second : rate),
      1e-6 * fit.network_us,
      static_cast<double>(neighbours) / static_cast<double>(hardware.ranks_per_node)};
}

} // namespace

double event_time(const PlanEvent& event, const Machine& machine) {
  const auto& fit = machine.calibration;
  const double launch = 1e-6 * fit.launch_us, between = 1e-6 * fit.between_us;
  if (const auto seconds = measured_seconds(event, fit)) {
    return between + *seconds;
  }
  switch (event.kind) {
  case What::product:
    return between +
           std::max(
               launch,
               std::max(product_seconds(event, machine), memory_seconds(event.bytes, machine))
           );
  case What::attention:
    return between + std::max(launch, attention_seconds(event, machine));
  case What::memory:
    return between + std::max(launch, memory_seconds(bytes_of(event, fit), machine));
  case What::start:
  case What::wait:
    break;
  }
  return 0;
}

namespace {

double transfer_seconds(double bytes, const LinkLevel& level) {
  return level.latency + (level.bytes_per_second > 0 ? bytes / level.bytes_per_second : 0);
}

double seconds_at(const PlannedCollective& collective, double bytes, const LinkLevel& level) {
  const auto n = static_cast<double>(collective.group->members.size());
  const double rate = level.bytes_per_second, latency = level.latency;
  if (collective.host || n < 2) {
    return 0;
  }
  if (rate <= 0) {
    return latency;
  }
  const double rounds = std::ceil(std::log2(n)); // trees carry what is short
  if (collective.is("all-reduce")) {
    return 2 * rounds * latency + 2 * (n - 1) / n * bytes / rate;
  }
  if (collective.is("all-gather")) { // the input is a rank's part
    return rounds * latency + (n - 1) * bytes / rate;
  }
  if (collective.is("reduce-scatter") || collective.is("all-to-all")) {
    return rounds * latency + (n - 1) / n * bytes / rate;
  }
  return transfer_seconds(bytes, level);
}

double seconds_at(const PlannedCollective& collective, const LinkLevel& level) {
  return seconds_at(collective, static_cast<double>(collective.bytes), level);
}

/// A piece for each rank is a transfer to it; fewer are collectives of their own.
double
seconds_in_pieces(const PlannedCollective& collective, int64_t pieces, const LinkLevel& level) {
  const auto count = static_cast<double>(pieces);
  const auto bytes = static_cast<double>(collective.bytes);
  if (pieces < static_cast<int64_t>(collective.group->members.size())) {
    return count * seconds_at(collective, bytes / count, level);
  }
  return (count - 1) * transfer_seconds(collective.is("all-gather") ? bytes : bytes / count, level);
}

} // namespace

double collective_time(const PlannedCollective& collective, const Machine& machine) {
  return seconds_at(collective, level_of(collective, machine));
}

void PassTime::add(const PassTime& other, double weight) {
  products += weight * other.products;
  attention += weight * other.attention;
  memory += weight * other.memory;
  for (const auto& [axis, seconds] : other.exposed) {
    exposed[axis] += weight * seconds;
  }
}

double PassTime::total() const {
  double sum = compute();
  for (const auto& [axis, seconds] : exposed) {
    sum += seconds;
  }
  return sum;
}

namespace {

/// One pass, event by event.
class EventClock {
public:
  EventClock(
      std::span<const PlanEvent> events,
      const std::vector<PlannedCollective>& collectives,
      const Machine& machine
  )
      : events_(events)
      , collectives_(collectives)
      , machine_(machine)
      , hidden_(events.size())
      , pieces_(events.size(), 1) {
    for (size_t i = 0; i < events.size(); ++i) {
      if (const size_t product = partner(i); product < events.size()) {
        pieces_[product] = pieces_of(i);
      }
    }
  }

  PassTime run(const std::map<size_t, double>& under_way) {
    over_ = under_way;
    for (const auto& [number, end] : under_way) {
      const auto& collective = collectives_[number];
      double& last = free_[collective.group->axis];
      last = std::max(last, end);
      channels_[collective.group->axis] = level_of(collective, machine_).channels;
    }
    for (size_t i = 0; i < events_.size(); ++i) {
      const auto& event = events_[i];
      if (event.kind == What::start) {
        start(i);
      } else if (event.kind == What::wait) {
        wait(event.collective);
      } else {
        compute(i);
      }
    }
    for (const auto& [number, one] : begun_) {
      time_.outstanding.push_back(one);
    }
    return std::move(time_);
  }

private:
  static bool holds(const std::vector<std::string>& axes, const std::string& axis) {
    return std::find(axes.begin(), axes.end(), axis) != axes.end();
  }

  void start(size_t i) {
    const size_t number = events_[i].collective;
    const auto& collective = collectives_[number];
    const std::string& axis = collective.group->axis;
    double& end = free_[axis];
    begun_[number] = {number, now_};
    const bool sends = collective.is("send"); // overlapped with what it receives
    const LinkLevel level = level_of(collective, machine_);
    const size_t product = partner(i);
    const double seconds = sends                      ? 0
                           : product < events_.size() ? in_sight(i, product, level)
                                                      : seconds_at(collective, level);
    end = std::max(end, now_) + seconds;
    over_[number] = end;
    channels_[axis] = level.channels;
    if (holds(machine_.calibration.waits, axis) && collective.peer < 0) {
      wait(number);
    }
  }

  void wait(size_t number) {
    if (!over_.contains(number)) {
      return;
    }
    begun_.erase(number);
    const double waits = std::max(0.0, over_[number] - now_);
    time_.exposed[collectives_[number].group->axis] += waits;
    now_ += waits;
  }

  [[nodiscard]] const PlannedCollective& collective(size_t i) const {
    return collectives_[events_[i].collective];
  }

  /// The GEMM that goes in pieces, overlapped with the collective which event i begins and the next
  /// one waits for; none: the number of events.
  [[nodiscard]] size_t partner(size_t i) const {
    const bool at_once = events_[i].kind == What::start && i + 1 < events_.size() &&
                         events_[i + 1].kind == What::wait &&
                         events_[i + 1].collective == events_[i].collective;
    if (!at_once || !holds(machine_.calibration.pieces, collective(i).group->axis)) {
      return events_.size();
    }
    const bool whole = events_[i].backward && !machine_.calibration.backward_sum_pieces;
    return collective(i).is("all-gather")                 ? next_product(i)
           : collective(i).is("reduce-scatter") && !whole ? last_product(i)
                                                          : events_.size();
  }

  /// The number of pieces of the collective that event i begins.
  [[nodiscard]] int64_t pieces_of(size_t i) const {
    const auto members = static_cast<int64_t>(collective(i).group->members.size());
    const int64_t most = machine_.calibration.sum_pieces;
    return collective(i).is("all-gather") || most == 0 ? members : std::min(most, members);
  }

  /// A GEMM in pieces leaves more processors without a tile, though some of them run at a time.
  [[nodiscard]] double seconds_of(size_t i) const {
    PlanEvent event = events_[i];
    const int64_t pieces = pieces_[i], streams = machine_.calibration.streams;
    if (pieces <= streams) {
      return event_time(event, machine_);
    }
    const double part = static_cast<double>(streams) / static_cast<double>(pieces);
    event.m = (event.m * streams + pieces - 1) / pieces;
    event.bytes *= part;
    event.flops *= part;
    return event_time(event, machine_) / part;
  }

  /// The seconds of a collective in pieces that its GEMM does not hide. With a piece
  /// for each rank, its own is a gather's first and a reduce-scatter's last, and there already; the
  /// last of fewer is overlapped with nothing. Nor is the GEMM's last piece after a gather, its
  /// first before a sum.
  double in_sight(size_t i, size_t product, const LinkLevel& level) {
    const bool own = pieces_of(i) == static_cast<int64_t>(collective(i).group->members.size());
    const double others = 1 - 1 / static_cast<double>(pieces_of(i));
    const double seconds = seconds_in_pieces(collective(i), pieces_of(i), level);
    const double room = seconds_of(product) * others - hidden_[product];
    const double overlapped =
        std::clamp(own ? seconds : seconds * others, 0.0, std::max(0.0, room));
    hidden_[product] += overlapped;
    if (collective(i).is("reduce-scatter")) {
      add_pieces(overlapped, collective(i));
    }
    return seconds - overlapped;
  }

  /// Adds the time that a reduce-scatter in pieces costs the GEMM before it and memory.
  void add_pieces(double overlapped, const PlannedCollective& collective) {
    const auto& fit = machine_.calibration;
    const double taken =
        static_cast<double>(fit.sum_channels) / static_cast<double>(machine_.hardware.processors);
    time_.products += overlapped * taken;
    now_ += overlapped * taken;
    if (fit.sums_after) {
      const auto members = static_cast<double>(collective.group->members.size());
      const double seconds =
          memory_seconds(static_cast<double>(collective.bytes) * (1 + 1 / members), machine_);
      time_.memory += seconds;
      now_ += seconds;
    }
  }

  [[nodiscard]] size_t next_product(size_t i) const {
    while (++i < events_.size() && events_[i].kind != What::product) {
    }
    return i;
  }

  [[nodiscard]] size_t last_product(size_t i) const {
    while (i-- > 0) {
      if (events_[i].kind == What::product) {
        return i;
      }
    }
    return events_.size();
  }

  /// Collectives that go on meanwhile take some of the processors.
  void compute(size_t i) {
    const auto& event = events_[i];
    const double alone = seconds_of(i);
    const double all = static_cast<double>(machine_.calibration.channels) /
                       static_cast<double>(machine_.hardware.processors);
    double seconds = alone;
    for (const auto& [axis, end] : free_) {
      const double taken = std::min(0.5, all * channels_[axis]);
      seconds += std::clamp(end - now_, 0.0, alone / (1 - taken)) * taken;
    }
    now_ += seconds;
    (event.kind == What::product     ? time_.products
     : event.kind == What::attention ? time_.attention
                                     : time_.memory) += seconds;
  }

  std::span<const PlanEvent> events_;
  const std::vector<PlannedCollective>& collectives_;
  const Machine& machine_;
  PassTime time_;
  double now_ = 0;
  std::map<std::string, double> free_;     // when an axis' collective before is over
  std::map<std::string, double> channels_; // and what part of the channels it uses
  std::map<size_t, Outstanding> begun_;
  std::map<size_t, double> over_;
  std::vector<double> hidden_;  // seconds overlapped with each GEMM
  std::vector<int64_t> pieces_; // pieces of each event
};

} // namespace

PassTime pass_time(
    std::span<const PlanEvent> events,
    const std::vector<PlannedCollective>& collectives,
    const Machine& machine,
    const std::map<size_t, double>& under_way
) {
  return EventClock(events, collectives, machine).run(under_way);
}

} // namespace mh
