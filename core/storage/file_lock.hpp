#pragma once
/// A lock that ends with its process.

#include "megahost/storage.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace mh {

/// Held by one process at a time, also if it is killed: two runs cannot write to one folder. Its
/// file says who holds it, as "HOST PROCESS".
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

/// The process that a lock's file names: the one that holds it, or held it last.
struct LockOwner {
  std::string host;
  int64_t process = 0;
  bool holds = false; ///< now, as far as this machine can tell: locks need not cross a network
};

/// Nothing if the file is missing, cannot be read or names no process.
[[nodiscard]] std::optional<LockOwner> lock_owner(const Path& path);

} // namespace mh
