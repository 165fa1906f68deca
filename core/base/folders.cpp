#include "core/base/folders.hpp"

#include "core/config.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

namespace mh {

namespace fs = std::filesystem;

std::vector<fs::path> path_list(const char* variable) {
  const char* value = std::getenv(variable);
  const std::string text = value == nullptr ? "" : value;
  std::vector<fs::path> paths;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find(':', start), text.size());
    if (end > start) {
      paths.emplace_back(text.substr(start, end - start));
    }
    start = end + 1;
  }
  return paths;
}

namespace {

/// The folder of the program.
fs::path program_folder() {
  std::error_code error;
  return fs::canonical("/proc/self/exe", error).parent_path();
}

/// A folder of the installation in which the program lies. One in a build tree, where there is
/// none, takes the source tree's, which a file of the build tree names.
fs::path own_files(const char* from_bin, const char* in_source) {
  std::error_code error;
  const fs::path here = program_folder();
  const fs::path installed = fs::weakly_canonical(here / from_bin, error);
  if (fs::is_directory(installed, error)) {
    return installed;
  }
  for (fs::path folder = here; folder.has_relative_path(); folder = folder.parent_path()) {
    std::string source;
    if (std::ifstream stream(folder / "source_folder"); std::getline(stream, source)) {
      return fs::path(source) / in_source;
    }
  }
  return installed;
}

} // namespace

namespace {

/// megahost's own below the folder that a variable names, or else below one of the home.
std::optional<fs::path> own_folder(const char* variable, const fs::path& in_home) {
  const char* folder = std::getenv(variable);
  const char* home = std::getenv("HOME");
  if (folder != nullptr && *folder != '\0') {
    return fs::path(folder) / "megahost";
  }
  return home != nullptr && *home != '\0' ? std::optional(home / in_home / "megahost")
                                          : std::nullopt;
}

} // namespace

std::optional<fs::path> user_folder() {
  return own_folder("XDG_DATA_HOME", fs::path(".local") / "share");
}

std::optional<fs::path> cache_folder() {
  return own_folder("XDG_CACHE_HOME", ".cache");
}

std::vector<fs::path> recipe_folders() {
  std::vector<fs::path> folders = path_list("MEGAHOST_RECIPE_PATH");
  folders.push_back(own_files(MH_RECIPES_FROM_BIN, "recipes"));
  return folders;
}

fs::path header_folder() {
  return own_files(MH_HEADERS_FROM_BIN, "core/include/megahost");
}

fs::path template_folder() {
  return own_files(MH_TEMPLATES_FROM_BIN, "templates");
}

std::optional<fs::path> pkg_config_folder() {
  std::error_code error;
  const fs::path here = program_folder();
  if (fs::exists(here / "megahost-uninstalled.pc", error)) {
    return here;
  }
  const fs::path folder = fs::weakly_canonical(here / MH_LIB_FROM_BIN / "pkgconfig", error);
  return fs::exists(folder / "megahost.pc", error) ? std::optional(folder) : std::nullopt;
}

} // namespace mh
