#pragma once
/// The lines of metrics.jsonl, one for each step and each evaluation.

#include "core/records/records.hpp"

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <variant>

namespace mh {

using Metric = std::variant<StepRecord, EvalRecord>;

/// Where a run writes them.
[[nodiscard]] inline std::filesystem::path metrics_file(const std::filesystem::path& run) {
  return run / "metrics.jsonl";
}

[[nodiscard]] std::string metric_line(const Metric& metric);

/// Nothing if the line is no metric, such as one that a crash cut off.
[[nodiscard]] std::optional<Metric> parse_metric(const std::string& line);

[[nodiscard]] inline int64_t step_of(const Metric& metric) {
  return std::visit([](const auto& record) { return record.step; }, metric);
}

[[nodiscard]] inline double time_of(const Metric& metric) {
  return std::visit([](const auto& record) { return record.time; }, metric);
}

/// Calls `use` for each metric of a file, with the line it came from, in the file's order. A file
/// that is not there has none.
void each_metric(
    const std::filesystem::path& file,
    const std::function<void(const Metric& metric, const std::string& line)>& use
);

} // namespace mh
