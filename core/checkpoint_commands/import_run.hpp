#pragma once
/// A run's checkpoint of what another program saved: weights, and moments where they are there.

#include "core/checkpoint/outlined.hpp"
#include "core/session/session.hpp"
#include "core/train/given_weights.hpp"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>

namespace mh {

struct ImportedRun {
  OutlinedTensors tensors{}; ///< each is read when its value is asked for
  nlohmann::json state{};
  int64_t step = 0;
  size_t weights = 0, optimizer = 0; ///< tensors; none of the optimizer: `--resume` cannot go on
  std::string from;                  ///< "runs/megatron, step 100"
  std::string unread{};              ///< why there is no state, where the checkpoint has one
};

/// Opens a folder's weights, and what it has of master weights and of the optimizer's state, as a run
/// of one rank stores them. The step and the samples are those that the other program says; else it is
/// step 0.
///
/// session:  on the Meta device (SessionOptions::planned_for)
/// Throws:   mh::Error (exit code 5) naming folder and tensor; as load_weights
[[nodiscard]] ImportedRun import_run(
    const std::filesystem::path& folder, Session& session, Host& host, const WeightsWanted& wanted
);

} // namespace mh
