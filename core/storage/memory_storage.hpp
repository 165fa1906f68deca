#pragma once
/// Objects in memory, as a store would hold them: whole or not there, and gone with the process. It
/// can fail or stop at any call, for tests of what must survive that.
///
/// ```cpp
/// mh::MemoryStorage store;
/// store.fault = {.at = store.calls + 7, .code = EIO};  // the 7th call from now, and all later
/// ```

#include "megahost/storage.hpp"

#include <atomic>
#include <map>
#include <mutex>
#include <optional>

namespace mh {

class MemoryStorage final : public Storage {
public:
  /// The fault of the n-th call, counted from 1, which replaces its work.
  struct Fault {
    size_t at = 0;
    int code = 0;        ///< errno
    bool forever = true; ///< every later call fails too, as where the process is gone
  };

  using Objects = std::map<std::string, std::string>;

  explicit MemoryStorage(Objects objects = {})
      : objects_(std::move(objects)) {}

  std::optional<Fault> fault;
  size_t calls = 0;
  std::atomic<uint64_t> bytes_read = 0;

  [[nodiscard]] std::unique_ptr<Upload> put(const Path& path, Existing existing) override;
  [[nodiscard]] std::unique_ptr<ReadFile> get(const Path& path) override;
  [[nodiscard]] bool contains(const Path& path) override;
  [[nodiscard]] std::vector<Item> list(const Path& prefix) override;
  void remove(const Path& path) override;
  void remove_all(const Path& prefix) override;
  void remove_unfinished(const Path& prefix) override;

  [[nodiscard]] const Objects& objects() const { return objects_; }

  /// The contents of an object, to be damaged by a test.
  [[nodiscard]] std::string& contents(const Path& path);

  /// The objects before each change and after the last one, in order.
  [[nodiscard]] const std::vector<Objects>& history() const { return history_; }

private:
  friend class MemoryUpload;
  friend class MemoryReadFile;

  /// Counts a call; fails if it is its turn.
  void called(const char* action, const Path& path);
  /// Remembers the objects as they are after a change.
  void changed();

  std::mutex mutex_;
  Objects objects_;
  std::vector<Objects> history_{objects_};
};

} // namespace mh
