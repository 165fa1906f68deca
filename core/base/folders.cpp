#include "core/base/folders.hpp"

#include "core/config.hpp"

#include <algorithm>
#include <cstdlib>
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

/// Where the program lies.
fs::path program_folder() {
  std::error_code error;
  return fs::canonical("/proc/self/exe", error).parent_path();
}

/// A folder next to the installed program, or the source tree's if it lies in its build tree.
fs::path own_files(const char* from_bin, const char* source) {
  std::error_code error;
  const fs::path installed = fs::weakly_canonical(program_folder() / from_bin, error);
  return fs::is_directory(installed, error) ? installed : fs::path(source);
}

} // namespace

std::optional<fs::path> user_folder() {
  const char* data = std::getenv("XDG_DATA_HOME");
  const char* home = std::getenv("HOME");
  if (data != nullptr && *data != '\0') {
    return fs::path(data) / "megahost";
  }
  return home != nullptr && *home != '\0'
             ? std::optional(fs::path(home) / ".local" / "share" / "megahost")
             : std::nullopt;
}

std::vector<fs::path> recipe_folders() {
  std::vector<fs::path> folders = path_list("MEGAHOST_RECIPE_PATH");
  folders.push_back(own_files(MH_RECIPES_FROM_BIN, MH_SOURCE_RECIPES));
  return folders;
}

fs::path header_folder() {
  return own_files(MH_HEADERS_FROM_BIN, MH_SOURCE_HEADERS);
}

fs::path template_folder() {
  return own_files(MH_TEMPLATES_FROM_BIN, MH_SOURCE_TEMPLATES);
}

std::optional<fs::path> pkg_config_folder() {
  std::error_code error;
  const fs::path folder =
      fs::weakly_canonical(program_folder() / MH_LIB_FROM_BIN / "pkgconfig", error);
  return fs::exists(folder / "megahost.pc", error) ? std::optional(folder) : std::nullopt;
}

} // namespace mh
