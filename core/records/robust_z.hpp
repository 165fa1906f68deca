#pragma once
/// How unusual a number is among those before it.

#include <cstddef>
#include <optional>
#include <vector>

namespace mh {

/// The middle one of values, at least one; of an even number the upper of the two.
[[nodiscard]] double median(std::vector<double> values);

/// Distance of a value from the median of those before it in robust standard deviations, 1.4826
/// times the median distance from the median. Outliers among them hardly count.
class RobustZ {
public:
  static constexpr size_t kWindow = 128; ///< values that are remembered, unless said otherwise
  static constexpr size_t kFewest = 16;  ///< before them there is no score

  explicit RobustZ(size_t window = kWindow)
      : window_(window) {}

  /// Nothing while too few values are remembered, or if all are equal.
  [[nodiscard]] std::optional<double> score(double value) const;

  /// The score of `value`, which is then remembered.
  std::optional<double> add(double value);

  /// What is remembered, the oldest first.
  [[nodiscard]] std::vector<double> values() const;

private:
  size_t window_;
  std::vector<double> values_; // a ring
  size_t next_ = 0;            // the oldest, once the ring is full
};

} // namespace mh
