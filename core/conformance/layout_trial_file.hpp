#pragma once
/// The result of a trial on processes, as a file: rank 0 passes it to the process that started the
/// ranks.

#include "core/conformance/layout_trial.hpp"

#include <filesystem>

namespace mh {

/// Puts the ranks' slices together; rank 0 writes the result.
///
/// Ranks:   collective over the mesh
void write_trial(const TrialResult& result, const Mesh& mesh, const std::filesystem::path& folder);

[[nodiscard]] TrialResult read_trial(const std::filesystem::path& folder);

} // namespace mh
