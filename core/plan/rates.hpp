#pragma once
/// How fast operations were by measurement, and how fast others of their kind will be.

#include "core/plan/hardware.hpp"
#include "core/plan/recorder.hpp"

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace mh {

/// Rates of the events of steps that were recorded where they ran, in the form of
/// `Calibration::rates`; events of one kind and size are one.
[[nodiscard]] std::map<std::string, std::vector<MeasuredRate>>
rates_of(std::span<const PlanEvent> events);

/// Seconds of an event by the rates of its kind: the mean of their logarithms, those of nearly its
/// size before others. Nothing if none of its kind was measured.
[[nodiscard]] std::optional<double>
measured_seconds(const PlanEvent& event, const Calibration& fit);

} // namespace mh
