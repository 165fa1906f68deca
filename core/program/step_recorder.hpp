#pragma once
/// One rank's training step, recorded in the parts that become modules.

#include "core/graph/graph.hpp"
#include "core/program/step_program.hpp"
#include "megahost/mesh.hpp"

#include <cstdint>
#include <vector>

namespace mh::program {

/// A module's place in the recording.
struct RecordedModule {
  Module module;         ///< without a text
  size_t first_node = 0; ///< the first one of its recording
  std::vector<int64_t> inputs{}, outputs{};
};

struct RecordedRank {
  Graph graph; ///< all that was recorded
  std::vector<RecordedModule> modules{};
  int64_t rank = -1;                           ///< the input of this name; -1: there is none
  std::vector<Port> tensors{};                 ///< see StageProgram
  std::vector<Port> carried{};                 ///< see StageProgram
  std::vector<std::vector<int64_t>> offsets{}; ///< [tensor][dimension]
  RankData data{};
  int64_t data_ranks = 1, microbatches = 1;
  std::vector<ModuleTurn> turns{};
  std::vector<std::string> counted{}, main_losses{}; ///< see StepProgram
};

/// Throws:  mh::Error where the recipe calls what no program can hold
[[nodiscard]] RecordedRank record_step(
    const Recipe& recipe,
    Host& host,
    const StepProgramOptions& options,
    const MeshShape& shape,
    int64_t rank
);

} // namespace mh::program
