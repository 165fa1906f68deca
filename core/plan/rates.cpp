#include "core/plan/rates.hpp"

#include <algorithm>
#include <cmath>

namespace mh {

namespace {

using EventKind = PlanEvent::Kind;

/// "megahost::attention_backward BFloat16 dropout".
std::string rate_kind(const PlanEvent& event) {
  return std::string(event.name) + " " + c10::toString(event.type) +
         (event.dropout ? " dropout" : "");
}

std::vector<double> rate_size(const PlanEvent& event) {
  if (event.kind == EventKind::memory) {
    return {event.bytes};
  }
  return {
      static_cast<double>(event.batch),
      static_cast<double>(event.m),
      static_cast<double>(event.n),
      static_cast<double>(event.k)};
}

/// The work that the event's rate counts.
double rated_work(const PlanEvent& event) {
  return event.kind == EventKind::memory ? event.bytes : event.flops;
}

/// Sum of the squared logarithms of their ratios.
double apart(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    sum += std::pow(std::log(std::max(a[i], 1.0) / std::max(b[i], 1.0)), 2);
  }
  return sum;
}

} // namespace

std::map<std::string, std::vector<MeasuredRate>> rates_of(std::span<const PlanEvent> events) {
  struct Sum {
    double work = 0, seconds = 0;
  };

  std::map<std::string, std::map<std::vector<double>, Sum>> sums;
  for (const PlanEvent& event : events) {
    const bool computes = event.kind == EventKind::product || event.kind == EventKind::attention ||
                          event.kind == EventKind::memory;
    if (computes && event.seconds > 0 && rated_work(event) > 0) {
      Sum& sum = sums[rate_kind(event)][rate_size(event)];
      sum.work += rated_work(event);
      sum.seconds += event.seconds;
    }
  }
  std::map<std::string, std::vector<MeasuredRate>> rates;
  for (const auto& [kind, sizes] : sums) {
    for (const auto& [size, sum] : sizes) {
      rates[kind].push_back({.size = size, .g_per_s = 1e-9 * sum.work / sum.seconds});
    }
  }
  return rates;
}

std::optional<double> measured_seconds(const PlanEvent& event, const Calibration& fit) {
  if (fit.rates.empty()) {
    return std::nullopt;
  }
  const auto found = fit.rates.find(rate_kind(event));
  if (found == fit.rates.end()) {
    return std::nullopt;
  }
  constexpr double kSame = 1e-4; // a ratio of 1%
  const auto size = rate_size(event);
  double sum = 0, weights = 0;
  for (const MeasuredRate& measured : found->second) {
    const double weight = std::pow(apart(size, measured.size) + kSame, -1);
    sum += weight * std::log(1e9 * measured.g_per_s);
    weights += weight;
  }
  return rated_work(event) / std::exp(sum / weights);
}

} // namespace mh
