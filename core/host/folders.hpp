#pragma once
/// Where the program's own files lie.

#include <filesystem>
#include <vector>

namespace mh {

/// Folders in which recipes and presets are looked up: those of MEGAHOST_RECIPE_PATH (separated by
/// colons), then the installed ones, or the source tree's if the program lies in its build tree.
[[nodiscard]] std::vector<std::filesystem::path> recipe_folders();

/// The paths of a variable of the environment, separated by colons; empty ones are left out.
[[nodiscard]] std::vector<std::filesystem::path> path_list(const char* variable);

} // namespace mh
