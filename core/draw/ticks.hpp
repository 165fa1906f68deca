#pragma once
/// Axes of charts: their range, and round numbers on it.

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace mh {

struct AxisRange {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }

  /// A little more on both sides, and never empty.
  [[nodiscard]] AxisRange padded() const;
};

struct Tick {
  double at;
  std::string label;
};

/// About `count` ticks at multiples of 1, 2 or 5 times a power of ten.
[[nodiscard]] std::vector<Tick> ticks(const AxisRange& range, int count);

/// At least three ticks, where the range allows, at round numbers of a logarithmic axis; the range
/// and `at` are powers of ten.
[[nodiscard]] std::vector<Tick> log_ticks(const AxisRange& range);

} // namespace mh
