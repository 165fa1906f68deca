#pragma once
/// Objects as files. An upload is a file under a temporary name that gets its own when it is whole
/// and on the disk; prefixes are folders, made when they are needed.

#include "core/storage/file_system.hpp"

#include <functional>

namespace mh {

class LocalStorage final : public Storage {
public:
  /// `files` outlives the storage.
  explicit LocalStorage(FileSystem& files = file_system())
      : files_(files) {}

  [[nodiscard]] std::unique_ptr<Upload> put(const Path& path, Existing existing) override;
  [[nodiscard]] std::unique_ptr<ReadFile> get(const Path& path) override;
  [[nodiscard]] bool contains(const Path& path) override;
  [[nodiscard]] std::vector<Item> list(const Path& prefix) override;
  void remove(const Path& path) override;
  void remove_all(const Path& prefix) override;
  [[nodiscard]] std::vector<Unfinished> unfinished(const Path& prefix) override;
  void remove_unfinished(const Path& prefix) override;

private:
  /// Every temporary file below a prefix.
  void each_unfinished(const Path& prefix, const std::function<void(const Path& file)>& see);

  FileSystem& files_;
};

} // namespace mh
