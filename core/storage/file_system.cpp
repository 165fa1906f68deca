#include "core/storage/file_system.hpp"

#include <cerrno>

namespace mh {

WriteFile::~WriteFile() = default;
FileSystem::~FileSystem() = default;

void write_all(WriteFile& file, std::span<const std::byte> bytes, const Path& path) {
  while (!bytes.empty()) {
    const size_t written = file.write(bytes);
    MH_ASSERT(written > 0 && written <= bytes.size(), "a write of no bytes to " + path.string());
    bytes = bytes.subspan(written);
  }
}

std::string read_text(ReadFile& file, const Path& path, uint64_t limit) {
  if (file.size() > limit) {
    throw Error(
        path.string() + ": " + std::to_string(file.size()) + " bytes, expected at most " +
            std::to_string(limit),
        "",
        exit_code::data
    );
  }
  std::string text(file.size(), '\0');
  read_exactly(file, 0, std::as_writable_bytes(std::span(text)), path);
  return text;
}

void write_file(FileSystem& files, const Path& path, std::string_view text) {
  const auto file = files.create(path);
  write_all(*file, std::as_bytes(std::span(text)), path);
  file->sync();
}

void replace_file(FileSystem& files, const Path& path, std::string_view text) {
  const Path aside = path.string() + ".tmp";
  if (files.kind(aside) != FileSystem::Kind::none) {
    files.remove(aside);
  }
  write_file(files, aside, text);
  files.rename(aside, path);
  files.sync_directory(path.parent_path());
}

std::string read_file(FileSystem& files, const Path& path, uint64_t limit) {
  const auto file = files.open(path);
  return read_text(*file, path, limit);
}

void make_directories(FileSystem& files, const Path& directory) {
  if (directory.empty() || files.kind(directory) != FileSystem::Kind::none) {
    return;
  }
  make_directories(files, directory.parent_path());
  try {
    files.make_directory(directory);
  } catch (const StorageError& error) {
    if (error.code() != EEXIST) { // else another rank was faster
      throw;
    }
  }
  files.sync_directory(directory.parent_path());
}

void remove_tree(FileSystem& files, const Path& path) {
  if (files.kind(path) == FileSystem::Kind::directory) {
    for (const std::string& name : files.list(path)) {
      remove_tree(files, path / name);
    }
  }
  files.remove(path);
}

void write_file(const Path& path, std::string_view text) {
  write_file(file_system(), path, text);
}

void replace_file(const Path& path, std::string_view text) {
  replace_file(file_system(), path, text);
}

std::string read_file(const Path& path, uint64_t limit) {
  return read_file(file_system(), path, limit);
}

void make_directories(const Path& directory) {
  make_directories(file_system(), directory);
}

} // namespace mh
