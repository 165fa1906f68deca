#include "core/storage/storage.hpp"

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

StorageError::~StorageError() = default;
WriteFile::~WriteFile() = default;
ReadFile::~ReadFile() = default;
Storage::~Storage() = default;

void write_all(WriteFile& file, std::span<const std::byte> bytes, const Path& path) {
  while (!bytes.empty()) {
    const size_t written = file.write(bytes);
    MH_ASSERT(written > 0 && written <= bytes.size(), "a write of no bytes to " + path.string());
    bytes = bytes.subspan(written);
  }
}

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

void write_file(Storage& storage, const Path& path, std::string_view text) {
  const auto file = storage.create(path);
  write_all(*file, std::as_bytes(std::span(text)), path);
  file->sync();
}

void replace_file(Storage& storage, const Path& path, std::string_view text) {
  const Path aside = path.string() + ".tmp";
  if (storage.kind(aside) != Storage::Kind::none) {
    storage.remove(aside);
  }
  write_file(storage, aside, text);
  storage.rename(aside, path);
  storage.sync_directory(path.parent_path());
}

std::string read_file(Storage& storage, const Path& path, uint64_t limit) {
  const auto file = storage.open(path);
  if (file->size() > limit) {
    throw Error(
        path.string() + ": " + std::to_string(file->size()) + " bytes, expected at most " +
            std::to_string(limit),
        "",
        exit_code::data
    );
  }
  std::string text(file->size(), '\0');
  read_exactly(*file, 0, std::as_writable_bytes(std::span(text)), path);
  return text;
}

void make_directories(Storage& storage, const Path& directory) {
  if (directory.empty() || storage.kind(directory) != Storage::Kind::none) {
    return;
  }
  make_directories(storage, directory.parent_path());
  storage.make_directory(directory);
  storage.sync_directory(directory.parent_path());
}

void remove_tree(Storage& storage, const Path& path) {
  if (storage.kind(path) == Storage::Kind::directory) {
    for (const std::string& name : storage.list(path)) {
      remove_tree(storage, path / name);
    }
  }
  storage.remove(path);
}

} // namespace mh
