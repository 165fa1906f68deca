#pragma once
/// Files of this machine, and a lock that ends with the process.

#include "core/storage/storage.hpp"

namespace mh {

class LocalStorage final : public Storage {
public:
  [[nodiscard]] std::unique_ptr<WriteFile> create(const Path& path) override;
  [[nodiscard]] std::unique_ptr<ReadFile> open(const Path& path) override;
  [[nodiscard]] Kind kind(const Path& path) override;
  [[nodiscard]] std::vector<std::string> list(const Path& directory) override;
  void make_directory(const Path& directory) override;
  void rename(const Path& from, const Path& to) override;
  void remove(const Path& path) override;
  void sync_directory(const Path& directory) override;
};

/// Held by one process at a time, also if it is killed: two runs cannot write to one folder.
class FileLock {
public:
  /// Makes the file if it is missing.
  ///
  /// Throws:  mh::Error if another process holds it; StorageError if it cannot be made
  explicit FileLock(const Path& path);
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock();

private:
  int descriptor_;
};

} // namespace mh
