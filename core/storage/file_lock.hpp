#pragma once
/// A lock that ends with its process.

#include "megahost/storage.hpp"

namespace mh {

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
