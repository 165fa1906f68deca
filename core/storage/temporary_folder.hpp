#pragma once
/// A folder below TMPDIR that goes with the object.
///
/// ```cpp
/// const mh::TemporaryFolder folder("megahost-check");
/// mh::replace_file(folder.path() / "notes", "...");
/// ```

#include "megahost/error.hpp"

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace mh {

class TemporaryFolder {
public:
  /// Its name begins with `name`.
  ///
  /// Throws:  mh::Error if it cannot be made
  explicit TemporaryFolder(const std::string& name) {
    std::string made = std::filesystem::temp_directory_path() / (name + "-XXXXXX");
    if (mkdtemp(made.data()) == nullptr) {
      throw Error("no temporary folder " + made, "make room in TMPDIR", exit_code::other);
    }
    path_ = made;
  }

  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

private:
  std::filesystem::path path_;
};

} // namespace mh
