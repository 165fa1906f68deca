#pragma once
/// Ranks of a job are looked at before it trains, by `doctor --ranks` and `run --preflight`.

#include "core/bench/preflight.hpp"
#include "core/mesh/processes.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace mh {

struct PreflightTerms {
  double hang_after = 10; ///< see `Processes::watch`
  std::filesystem::path disk;
  std::optional<Machine> expected{}; ///< the rates that plans count on
  bool json = false;
};

/// Measures, and shows on rank 0 what was found.
///
/// Returns: what is wrong, on every rank
/// Ranks:   all
[[nodiscard]] std::vector<std::string>
preflight(const Processes& processes, const Device& device, const PreflightTerms& terms);

/// Throws:  mh::Error (exit code 4) if there are any
void refuse_faults(const std::vector<std::string>& faults);

} // namespace mh
