#pragma once
/// The folders of the program's own files.

#include <filesystem>
#include <optional>
#include <vector>

namespace mh {

/// Folders in which recipes and presets are looked up: those of MEGAHOST_RECIPE_PATH (separated by
/// colons), then the installed ones, or the source tree's if the program lies in its build tree.
[[nodiscard]] std::vector<std::filesystem::path> recipe_folders();

/// The user's own folder: $XDG_DATA_HOME/megahost, or ~/.local/share/megahost; none without a home.
[[nodiscard]] std::optional<std::filesystem::path> user_folder();

/// For what can be made again: $XDG_CACHE_HOME/megahost, or ~/.cache/megahost; none without a home.
[[nodiscard]] std::optional<std::filesystem::path> cache_folder();

/// Folder of the templates of `plugins new`.
[[nodiscard]] std::filesystem::path template_folder();

/// Folder of the megahost.pc with which plugins are built: the installed one, or the build tree's.
[[nodiscard]] std::optional<std::filesystem::path> pkg_config_folder();

/// The SDK's headers: the installed ones, or the source tree's if the program lies in its build
/// tree.
[[nodiscard]] std::filesystem::path header_folder();

/// The paths of a variable of the environment, separated by colons; empty ones are left out.
[[nodiscard]] std::vector<std::filesystem::path> path_list(const char* variable);

} // namespace mh
