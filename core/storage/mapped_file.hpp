#pragma once
/// A file as memory, for tensors that are used without being copied.

#include "megahost/storage.hpp"

namespace mh {

/// The bytes of a regular file. They may be written to: such pages become private, the file keeps
/// its contents. The file must not be cut while it is mapped.
class MappedFile {
public:
  explicit MappedFile(const Path& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

private:
  std::span<std::byte> bytes_;
};

} // namespace mh
