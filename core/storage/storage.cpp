#include "megahost/storage.hpp"

#include "core/storage/file_system.hpp"

#include <cerrno>
#include <system_error>

namespace mh {

namespace {

std::string hint_for(int code) {
  switch (code) {
  case ENOSPC:
  case EDQUOT:
    return "free some space there, or choose a folder on another disk";
  case EACCES:
  case EPERM:
  case EROFS:
    return "choose a folder that you may write to, or change its permissions";
  case EIO:
  case ESTALE:
    return "the disk or the network file system failed: its log says more";
  default:
    return "";
  }
}

} // namespace

StorageError::StorageError(const std::string& action, const Path& path, int code)
    : Error(
          "cannot " + action + " " + path.string() + ": " + std::generic_category().message(code),
          hint_for(code),
          exit_code::data
      )
    , code_(code) {}

StorageError::StorageError(
    const std::string& action,
    const Path& path,
    int code,
    const std::string& reason,
    const std::string& hint
)
    : Error("cannot " + action + " " + path.string() + ": " + reason, hint, exit_code::data)
    , code_(code) {}

StorageError::~StorageError() = default;
ReadFile::~ReadFile() = default;
Upload::~Upload() = default;
Storage::~Storage() = default;

void read_exactly(ReadFile& file, uint64_t offset, std::span<std::byte> into, const Path& path) {
  while (!into.empty()) {
    const size_t got = file.read(offset, into);
    if (got == 0) {
      throw Error(
          path.string() + ": ends at byte " + std::to_string(offset) + ", expected " +
              std::to_string(into.size()) + " more",
          "the file is cut short",
          exit_code::data
      );
    }
    offset += got;
    into = into.subspan(got);
  }
}

void put_text(
    Storage& storage, const Path& path, std::string_view text, Storage::Existing existing
) {
  const auto upload = storage.put(path, existing);
  upload->write(std::as_bytes(std::span(text)));
  upload->finish();
}

std::string get_text(Storage& storage, const Path& path, uint64_t limit) {
  const auto file = storage.get(path);
  return read_text(*file, path, limit);
}

} // namespace mh
