#pragma once
/// A run's checkpoint of what another program saved: weights, and moments where they are there.

#include "core/train/given_weights.hpp"
#include "core/train/session.hpp"

#include <filesystem>
#include <string>

namespace mh {

struct ImportedRun {
  int64_t step = 0;
  size_t weights = 0, state = 0; ///< tensors; no state: `--resume` cannot go on
  std::string from;              ///< "runs/megatron, step 100"
  std::string unread{};          ///< why there is no state, where the checkpoint has one
};

/// Loads a folder's weights into a session of one rank, and what it has of master weights and of the
/// optimizer's state, and writes a run's checkpoint of them to `to`. The step and the samples are
/// those that the other program says; else it is step 0.
///
/// Throws:  mh::Error (exit code 5) naming folder and tensor; as load_weights
[[nodiscard]] ImportedRun import_run(
    const std::filesystem::path& folder,
    const std::filesystem::path& to,
    Session& session,
    Host& host,
    const WeightsWanted& wanted
);

} // namespace mh
