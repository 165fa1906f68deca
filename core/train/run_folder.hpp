#pragma once
/// Where a run keeps its recipe, metrics, log and checkpoints.

#include <filesystem>
#include <string>
#include <vector>

namespace mh {

/// The folder a run takes: `wanted`, or if a fresh run finds another run there, the first free one of
/// wanted-2, wanted-3, ... A resumed run takes the last of them that holds a run.
[[nodiscard]] std::filesystem::path run_folder(const std::filesystem::path& wanted, bool resume);

/// What to tell the user where that is not the folder that was asked for.
[[nodiscard]] std::vector<std::string> folder_notes(const std::filesystem::path& wanted,
                                                    const std::filesystem::path& taken, bool resume);

/// Makes the folder and writes the resolved recipe into it, as recipe.toml.
///
/// Throws:  mh::Error (exit code 5) naming the path and the cause
void make_run_folder(const std::filesystem::path& folder, const std::string& recipe_text);

}  // namespace mh
