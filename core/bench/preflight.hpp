#pragma once
/// The ranks of a job before it trains: what each reaches alone, what they reach together, and
/// which of them is unlike the others.

#include "core/plan/hardware.hpp"
#include "megahost/device.hpp"
#include "megahost/mesh.hpp"

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// Rates are the best of what was measured; 0: not measured.
struct CheckedRank {
  std::string host, build;
  double gemm = 0;             ///< FLOP/s of large GEMMs
  double copy = 0;             ///< bytes per second of memory, read and written
  double disk = 0;             ///< bytes per second, written and synced
  std::string disk_failed{};   ///< why nothing could be written
  double clock = 0;            ///< seconds that its clock is ahead of rank 0's
  std::vector<double> links{}; ///< bytes per second each way to and from each rank

  /// The median of its links; 0 without.
  [[nodiscard]] double link() const;
};

struct Preflight {
  std::string device;
  at::ScalarType type = at::kFloat; ///< dtype of the GEMMs
  std::vector<CheckedRank> ranks;
  double all_reduce = 0; ///< bytes per second across each rank's link in an all-reduce of all ranks
};

/// Measures, for some seconds; what is found slow is measured again, so that a disturbance is no
/// fault. A file is written to the folder `disk` and removed.
///
/// Ranks:   all of the group; each gets the whole
[[nodiscard]] Preflight
check_ranks(const Group& all, const Device& device, const std::filesystem::path& disk);

/// Sentences that name ranks with their hosts: GEMMs that reach less than 0.7 of the others', copies
/// and links less than half, writes less than a quarter; clocks half a second apart, other builds,
/// disks that cannot be written; and, with `expected`, what reaches less than 0.7 of what plans for
/// that machine count on.
[[nodiscard]] std::vector<std::string>
judge_ranks(const Preflight& found, const std::optional<Machine>& expected = {});

/// A row for each rank, and the sentences.
[[nodiscard]] std::string
preflight_text(const Preflight& found, const std::vector<std::string>& faults);
[[nodiscard]] std::string
preflight_json(const Preflight& found, const std::vector<std::string>& faults);

} // namespace mh
