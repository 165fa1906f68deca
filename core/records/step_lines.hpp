#pragma once
/// Some steps of training as one line, in each of the log's formats.

#include "core/records/records.hpp"
#include "core/records/robust_z.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// The terms that a line shows in addition to its steps.
struct Outlook {
  std::optional<double> loss_z{}, norm_z{}; ///< z-scores of the last step
  double seconds_left = 0;                  ///< seconds left for the whole run
};

/// Each loss's mean by its name.
[[nodiscard]] nlohmann::json losses_json(const std::vector<LossValue>& losses);

/// The mean of some steps in each format. `steps` is not empty.
///
/// Fields:  step/total, losses, gradient norm, learning rate, time per step, tokens/s, TFLOP/s,
/// MFU,
///          peak memory, time left
[[nodiscard]] std::vector<std::string>
step_fields(const std::vector<StepRecord>& steps, const Rates& rates, const Outlook& outlook);

/// A warning where the steps do more than the peak, so that it cannot be right; empty otherwise.
[[nodiscard]] std::string peak_warning(const std::vector<StepRecord>& steps, const Rates& rates);

[[nodiscard]] std::string megatron_line(const std::vector<StepRecord>& steps, const Rates& rates);
[[nodiscard]] std::string
json_line(const std::vector<StepRecord>& steps, const Rates& rates, const Outlook& outlook);

} // namespace mh
