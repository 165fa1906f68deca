#include "core/plan/measured.hpp"

#include "core/records/robust_z.hpp"

#include <cmath>

namespace mh {

Measured measured_of(const RunMetrics& run) {
  constexpr size_t kWarmUp = 3; // steps until memory is there and the machine is at speed
  const auto& steps = run.steps;
  Measured measured{.folder = run.name, .last = steps.back().step, .ranks = steps.back().ranks};
  measured.memory = steps.back().memory;
  measured.tensors = steps.back().tensors;
  size_t first = steps.size() - 1;
  while (first > 0 && steps[first - 1].ranks == measured.ranks) {
    --first;
  }
  first = std::min(first + kWarmUp, steps.size() - 1);
  measured.first = steps[first].step;
  std::vector<double> seconds, rates;
  for (size_t i = first; i < steps.size(); ++i) {
    seconds.push_back(steps[i].seconds);
    rates.push_back(run.tokens_per_second(i));
  }
  measured.seconds = median(seconds);
  measured.tokens_per_second = median(rates);
  return measured;
}

} // namespace mh
