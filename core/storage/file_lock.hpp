#pragma once
/// A lock that ends with its process.

#include "megahost/storage.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

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

/// A file that is held by one process or by several, and no longer than they live.
class HeldFile {
public:
  enum class As : uint8_t {
    shared,  ///< waits for one that holds it alone
    alone,   ///< waits for all others
    if_free, ///< alone, and does not wait
  };

  /// Nothing if there is no such file, if it was removed meanwhile, or if it is not free. `waits` is
  /// called before it waits.
  ///
  /// Throws:  StorageError if it cannot be held
  [[nodiscard]] static std::optional<HeldFile>
  take(const Path& path, As as, const std::function<void()>& waits = {});

  HeldFile(HeldFile&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)) {}

  HeldFile& operator=(HeldFile&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }

  ~HeldFile();

private:
  explicit HeldFile(int descriptor)
      : descriptor_(descriptor) {}

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
