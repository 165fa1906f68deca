#pragma once
/// Compiled programs in a folder, which machines with the same devices may share: compiling takes
/// minutes on some.

#include "client.hpp"

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace pjrt {

/// A file for each module, its devices, and version of plugin and compiler. Files are written
/// under another name and renamed, so that no reader meets half of one.
class ProgramCache {
public:
  explicit ProgramCache(std::filesystem::path folder)
      : folder_(std::move(folder)) {}

  /// The executable of a module: that of the folder, or compiled and put there. A file that cannot
  /// be loaded is compiled anew, and a folder that cannot be written leaves the executable without
  /// a file: both with a warning.
  [[nodiscard]] std::unique_ptr<Executable> compile(
      const PjrtClient& client, const std::string& module, const std::vector<size_t>& devices
  ) const;

private:
  [[nodiscard]] std::filesystem::path file_of(
      const PjrtClient& client, const std::string& module, const std::vector<size_t>& devices
  ) const;

  std::filesystem::path folder_;
};

} // namespace pjrt
