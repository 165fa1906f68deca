#pragma once
/// What a run needs to go on as if it had never stopped.

#include "core/mesh/agree.hpp"
#include "core/train/guards.hpp"
#include "core/train/weights.hpp"
#include "megahost/recipe.hpp"

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// The part of a run's state that is no tensor.
struct Progress {
  int64_t step = 0;    ///< completed, skipped ones included
  int64_t samples = 0; ///< consumed, without those that rewinds left out
  int64_t tokens = 0;
  int64_t seed = 0;
  int64_t threads = 0;
  std::string cpu_level;
  GuardState guards{};
  std::vector<std::string> plugins;            ///< "org.megahost.llama 0.1.0"
  std::string schedule;                        ///< Schedule::text()
  std::map<std::string, std::string> sections; ///< of the recipe, as text: what decides the numbers
};

/// Folder of the checkpoints of a run.
[[nodiscard]] std::filesystem::path checkpoint_folder(const std::filesystem::path& run);

/// Writes a checkpoint, whole or not at all, and removes all but the newest `keep` (0 keeps all).
/// `notes` gets what went wrong afterwards.
///
/// Throws:  mh::Error (exit code 5) naming path and cause
/// Ranks:   all; each writes the slices that it alone is told to
void save_checkpoint(
    const std::filesystem::path& run,
    const Progress& progress,
    const Weights& weights,
    int64_t keep,
    std::vector<std::string>& notes,
    const Ranks& ranks = {}
);

/// Loads the newest checkpoint that is whole; nothing if there is none. `notes` gets a sentence for
/// each newer one that was passed over.
///
/// Throws:  mh::Error (exit code 5) if there are checkpoints, but none is whole or fits the model
/// Ranks:   all, under any layout; rank 0 looks for the checkpoint, each reads its own slices
[[nodiscard]] std::optional<Progress> load_checkpoint(
    const std::filesystem::path& run,
    Weights& weights,
    std::vector<std::string>& notes,
    const Ranks& ranks = {}
);

/// What decides a run's numbers, section by section.
[[nodiscard]] std::map<std::string, std::string> deciding_sections(const Recipe& recipe);

/// Sentences about what may make the numbers differ from those of an uninterrupted run.
[[nodiscard]] std::vector<std::string> differences(const Progress& saved, const Progress& now);

} // namespace mh
