#include "core/host/folders.hpp"

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

std::vector<fs::path> recipe_folders() {
  std::vector<fs::path> folders = path_list("MEGAHOST_RECIPE_PATH");
  std::error_code error;
  const fs::path program = fs::canonical("/proc/self/exe", error).parent_path();
  const fs::path installed = fs::weakly_canonical(program / MH_RECIPES_FROM_BIN, error);
  folders.push_back(fs::is_directory(installed, error) ? installed : fs::path(MH_SOURCE_RECIPES));
  return folders;
}

} // namespace mh
