#pragma once
/// Files and folders of a machine behind one small interface, so that a test can make every
/// operation fail, or look at the disk as a crash would leave it.
///
/// ```cpp
/// mh::write_file("a/notes.txt", "text");    // complete and synced, or an exception
/// mh::replace_file("a/notes.txt", "other"); // readers see the old text or the new one
/// std::string text = mh::read_file("a/notes.txt", 1 << 20);
/// ```
///
/// Paths that a person names and other programs open (reports, recipes, corpora, a run's log) are
/// files and go through here; data that may lie in an object store go through `Storage`.

#include "megahost/storage.hpp"

namespace mh {

/// A file being written from its start.
class WriteFile {
public:
  virtual ~WriteFile();
  /// Appends some of the bytes, at least one; returns how many.
  virtual size_t write(std::span<const std::byte> bytes) = 0;
  /// Returns when all that was written before is on the disk; another thread may write at the same
  /// time. After a failure the file is suspect forever.
  virtual void sync() = 0;
};

/// Throws:  StorageError from every function, with the path
class FileSystem {
public:
  enum class Kind : uint8_t { none, file, directory, other };

  virtual ~FileSystem();
  /// A new file; there must be none of this name.
  [[nodiscard]] virtual std::unique_ptr<WriteFile> create(const Path& path) = 0;

  /// A new file whose large parts go to the disk past the page cache, where they would cost the
  /// processor more than the disk and push out what a run reads. Its end is there after `sync` alone.
  [[nodiscard]] virtual std::unique_ptr<WriteFile> create_large(const Path& path) {
    return create(path);
  }

  /// An existing file that is cut after `size` bytes, of which it has at least so many, and grows from
  /// there.
  [[nodiscard]] virtual std::unique_ptr<WriteFile> extend(const Path& path, uint64_t size) = 0;
  /// An existing regular file.
  [[nodiscard]] virtual std::unique_ptr<ReadFile> open(const Path& path) = 0;
  /// The kind of the object at a path, symbolic links not followed.
  [[nodiscard]] virtual Kind kind(const Path& path) = 0;
  /// Names in a directory, sorted.
  [[nodiscard]] virtual std::vector<std::string> list(const Path& directory) = 0;
  virtual void make_directory(const Path& directory) = 0;
  /// A file gets a new name, atomically, in place of any file of that name.
  virtual void rename(const Path& from, const Path& to) = 0;
  /// The same where no file has that name; else StorageError with EEXIST.
  virtual void rename_new(const Path& from, const Path& to) = 0;
  /// A file or an empty directory.
  virtual void remove(const Path& path) = 0;
  /// Returns when the names in the directory are on the disk.
  virtual void sync_directory(const Path& directory) = 0;
};

/// This machine's.
[[nodiscard]] FileSystem& file_system();

/// Appends all of the bytes.
void write_all(WriteFile& file, std::span<const std::byte> bytes, const Path& path);
/// The rest of a file's text. Throws:  mh::Error if it is longer than `limit`
[[nodiscard]] std::string read_text(ReadFile& file, const Path& path, uint64_t limit);

/// Writes a new file and syncs it; not its name: that is `sync_directory`.
void write_file(FileSystem& files, const Path& path, std::string_view text);
/// The same under a temporary name, then renamed and the name synced: readers see the old or the
/// new.
void replace_file(FileSystem& files, const Path& path, std::string_view text);
/// A whole file. Throws:  mh::Error if it is longer than `limit`
[[nodiscard]] std::string read_file(FileSystem& files, const Path& path, uint64_t limit);
/// Makes the directory and those above it that are missing, and syncs their names. Others may make
/// them at the same time.
void make_directories(FileSystem& files, const Path& directory);
/// Removes a file or a directory with all that is in it; links are removed, not followed.
void remove_tree(FileSystem& files, const Path& path);

// The functions above, on this machine's file system.
void write_file(const Path& path, std::string_view text);
void replace_file(const Path& path, std::string_view text);
[[nodiscard]] std::string read_file(const Path& path, uint64_t limit);
void make_directories(const Path& directory);

} // namespace mh
