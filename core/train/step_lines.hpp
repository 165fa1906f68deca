#pragma once
/// Some steps of training as one line, in each of the log's formats.

#include "core/train/records.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// How unusual a value is beside those before it: its distance from their median in robust standard
/// deviations, 1.4826 times the median distance from the median. Outliers among them hardly count.
class RobustZ {
public:
  static constexpr size_t kWindow = 128; ///< values that are remembered
  static constexpr size_t kFewest = 16;  ///< before them there is no score

  /// The score of `value`, which is then remembered; nothing while too few are, or if all are
  /// equal.
  std::optional<double> add(double value);

private:
  std::vector<double> values_; // a ring
  size_t next_ = 0;
};

/// What a line shows beside its steps.
struct Outlook {
  std::optional<double> loss_z{}, norm_z{}; ///< of the last step
  double seconds_left = 0;                  ///< of the whole run
};

/// The mean of some steps in each format. `steps` is not empty.
///
/// Fields:  step/total, losses, gradient norm, learning rate, time per step, tokens/s, TFLOP/s,
/// MFU,
///          peak memory, time left
[[nodiscard]] std::vector<std::string>
step_fields(const std::vector<StepRecord>& steps, const Rates& rates, const Outlook& outlook);
[[nodiscard]] std::string megatron_line(const std::vector<StepRecord>& steps, const Rates& rates);
[[nodiscard]] std::string
json_line(const std::vector<StepRecord>& steps, const Rates& rates, const Outlook& outlook);

} // namespace mh
