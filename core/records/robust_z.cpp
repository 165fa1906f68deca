#include "core/records/robust_z.hpp"

#include <algorithm>
#include <cmath>

namespace mh {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::optional<double> RobustZ::score(double value) const {
  if (values_.size() < kFewest) {
    return std::nullopt;
  }
  const double center = median(values_);
  std::vector<double> distances;
  for (const double other : values_) {
    distances.push_back(std::abs(other - center));
  }
  // 1.4826: for normally distributed values this is their standard deviation.
  const double deviation = 1.4826 * median(distances);
  return deviation > 0 ? std::optional((value - center) / deviation) : std::nullopt;
}

std::optional<double> RobustZ::add(double value) {
  const auto result = score(value);
  if (values_.size() < window_) {
    values_.push_back(value);
  } else {
    values_[next_] = value;
    next_ = (next_ + 1) % window_;
  }
  return result;
}

std::vector<double> RobustZ::values() const {
  std::vector<double> ordered = values_;
  std::rotate(ordered.begin(), ordered.begin() + static_cast<ptrdiff_t>(next_), ordered.end());
  return ordered;
}

} // namespace mh
