#pragma once
/// Files behind one small interface, so that a test can make every operation fail and other kinds
/// of storage can follow.
///
///     mh::LocalStorage disk;
///     mh::write_file(disk, "a/notes.txt", "text");  // complete and synced, or an exception
///     std::string text = mh::read_file(disk, "a/notes.txt", 1 << 20);

#include "megahost/error.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

using Path = std::filesystem::path;

/// An operation on a file failed: "cannot ACTION PATH: REASON".
class StorageError : public Error {
public:
  /// `code` is an errno value.
  StorageError(const std::string& action, const Path& path, int code);
  ~StorageError() override;

  [[nodiscard]] int code() const { return code_; }

private:
  int code_;
};

/// A file being written from its start.
class WriteFile {
public:
  virtual ~WriteFile();
  /// Appends some of the bytes, at least one; returns how many.
  virtual size_t write(std::span<const std::byte> bytes) = 0;
  /// Returns when all that was written is on the disk. After a failure the file is suspect for
  /// ever.
  virtual void sync() = 0;
};

/// A file being read.
class ReadFile {
public:
  virtual ~ReadFile();
  [[nodiscard]] virtual uint64_t size() const = 0;
  /// Reads some bytes at `offset`; returns how many, 0 only at the end of the file.
  [[nodiscard]] virtual size_t read(uint64_t offset, std::span<std::byte> into) = 0;
};

/// Throws:  StorageError from every function, with the path
class Storage {
public:
  enum class Kind : uint8_t { none, file, directory, other };

  virtual ~Storage();
  /// A new file; there must be none of this name.
  [[nodiscard]] virtual std::unique_ptr<WriteFile> create(const Path& path) = 0;
  /// An existing regular file.
  [[nodiscard]] virtual std::unique_ptr<ReadFile> open(const Path& path) = 0;
  /// What lies there, symbolic links not followed.
  [[nodiscard]] virtual Kind kind(const Path& path) = 0;
  /// Names in a directory, sorted.
  [[nodiscard]] virtual std::vector<std::string> list(const Path& directory) = 0;
  virtual void make_directory(const Path& directory) = 0;
  /// A file or a whole directory gets a new name, atomically; replaces a file, never a directory
  /// with anything in it.
  virtual void rename(const Path& from, const Path& to) = 0;
  /// A file or an empty directory.
  virtual void remove(const Path& path) = 0;
  /// Returns when the names in the directory are on the disk.
  virtual void sync_directory(const Path& directory) = 0;
};

/// Appends all of the bytes.
void write_all(WriteFile& file, std::span<const std::byte> bytes, const Path& path);
/// Fills `into`. Throws:  mh::Error if the file ends before
void read_exactly(ReadFile& file, uint64_t offset, std::span<std::byte> into, const Path& path);

/// Writes a new file and syncs it; not its name: that is `sync_directory`.
void write_file(Storage& storage, const Path& path, std::string_view text);
/// The same under a temporary name, then renamed and the name synced: readers see the old or the
/// new.
void replace_file(Storage& storage, const Path& path, std::string_view text);
/// A whole file. Throws:  mh::Error if it is longer than `limit`
[[nodiscard]] std::string read_file(Storage& storage, const Path& path, uint64_t limit);

/// Makes the directory and those above it that are missing, and syncs their names.
void make_directories(Storage& storage, const Path& directory);
/// Removes a file or a directory with all that is in it; links are removed, not followed.
void remove_tree(Storage& storage, const Path& path);

} // namespace mh
