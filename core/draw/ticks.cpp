#include "core/draw/ticks.hpp"

#include <array>
#include <cmath>
#include <cstdio>

namespace mh {

namespace {

double tick_step(const AxisRange& range, int count) {
  const double raw = (range.high - range.low) / std::max(1, count);
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * (1 - 1e-9)) {
      return factor * power;
    }
  }
  return 10 * power;
}

std::string label(double value, double step) {
  const int digits = std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 8);
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value + 0.0);
  return text.data();
}

} // namespace

AxisRange AxisRange::padded() const {
  const double room = high > low ? (high - low) * 0.02 : std::max(std::abs(low) * 0.05, 1e-6);
  return {low - room, high + room};
}

std::vector<Tick> ticks(const AxisRange& range, int count) {
  const double step = tick_step(range, count);
  std::vector<Tick> found;
  const double first = std::ceil(range.low / step - 1e-9);
  for (double i = first; i * step <= range.high + step * 1e-9; ++i) {
    found.push_back({i * step, label(i * step, step)});
  }
  return found;
}

std::vector<Tick> log_ticks(const AxisRange& range) {
  constexpr size_t kEnough = 3;
  constexpr int kMost = 8; // decades that are labelled
  const int stride = std::max(1, static_cast<int>(std::ceil((range.high - range.low) / kMost)));
  std::vector<Tick> found;
  for (const std::vector<int>& factors :
       {std::vector{1}, {1, 3}, {1, 2, 5}, {1, 2, 3, 4, 5, 6, 7, 8, 9}}) {
    found.clear();
    const int first = static_cast<int>(std::floor(range.low / stride)) * stride;
    for (int power = first; power <= range.high; power += stride) {
      for (const int factor : factors) {
        const double at = power + std::log10(factor);
        if (at >= range.low - 1e-9 && at <= range.high + 1e-9) {
          std::array<char, 48> text{};
          std::snprintf(text.data(), text.size(), "%g", factor * std::pow(10.0, power));
          found.push_back({at, text.data()});
        }
      }
    }
    if (found.size() >= kEnough) {
      break;
    }
  }
  return found;
}

} // namespace mh
