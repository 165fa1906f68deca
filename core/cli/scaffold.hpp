#pragma once
/// New plugin projects, from the templates that come with megahost.

#include "megahost/kind.hpp"

#include <filesystem>
#include <string>
#include <vector>

namespace mh {

struct ScaffoldArgs {
  std::filesystem::path folder; ///< made if it is not there
  Kind kind = Kind::architecture;
  std::string name; ///< name in recipes
};

/// The names of a new plugin: its file without ".so", and its id.
struct ScaffoldNames {
  std::string file; ///< "optimizers-lion", found by its name once it is installed
  std::string id;   ///< "org.example.lion"
};

/// Throws:  mh::Error if the name cannot be that of a plugin and of its files
[[nodiscard]] ScaffoldNames scaffold_names(Kind kind, const std::string& name);

/// Writes the project; returns its files, relative to the folder.
///
/// Throws:  mh::Error if the folder has something in it or cannot be written, or a bad name
std::vector<std::filesystem::path> write_scaffold(const ScaffoldArgs& args);

} // namespace mh
