#pragma once
/// Files in memory that fail on purpose and remember every operation, so that a test can look
/// at the disk as a crash at any moment would have left it.

#include "core/storage/file_system.hpp"

#include <map>
#include <optional>
#include <random>

namespace mh::test {

struct Inode {
  bool directory = false;
  std::string data;
  std::map<std::string, int> entries;
};

/// Files and directories by number; 0 is the root.
struct Disk {
  std::map<int, Inode> inodes{{0, {.directory = true, .data = {}, .entries = {}}}};
};

/// One change of the disk, or one sync.
struct Operation {
  enum class Kind : uint8_t { link, unlink, rename, write, cut, sync };
  Kind kind;
  int inode = 0;             ///< the file or directory concerned (sync: what is synced)
  int directory = 0;         ///< link, unlink, rename: where its name is
  std::string name;          ///< link, unlink, rename
  int to_directory = 0;      ///< rename
  std::string to_name;       ///< rename
  bool is_directory = false; ///< link
  size_t offset = 0;         ///< write, cut
  std::string data;          ///< write
};

/// The fault of the n-th call, counted from 1, which replaces its work; `calls` counts.
struct Fault {
  size_t at = 0;
  int code = 0;        ///< errno
  bool forever = true; ///< every later call fails too
};

class MemoryFileSystem final : public FileSystem {
public:
  MemoryFileSystem() = default;

  explicit MemoryFileSystem(Disk disk)
      : disk_(std::move(disk))
      , next_(disk_.inodes.rbegin()->first + 1) {}

  std::optional<Fault> fault;
  size_t longest_write = SIZE_MAX; ///< short writes
  size_t calls = 0;
  uint64_t bytes_read = 0;

  [[nodiscard]] const Disk& disk() const { return disk_; }

  [[nodiscard]] const std::vector<Operation>& log() const { return log_; }

  [[nodiscard]] std::unique_ptr<WriteFile> create(const Path& path) override;
  [[nodiscard]] std::unique_ptr<WriteFile> extend(const Path& path, uint64_t size) override;
  [[nodiscard]] std::unique_ptr<ReadFile> open(const Path& path) override;
  [[nodiscard]] Kind kind(const Path& path) override;
  [[nodiscard]] std::vector<std::string> list(const Path& directory) override;
  void make_directory(const Path& directory) override;
  void rename(const Path& from, const Path& to) override;
  void rename_new(const Path& from, const Path& to) override;
  void remove(const Path& path) override;
  void sync_directory(const Path& directory) override;

  /// The contents of a file, to be damaged by a test.
  [[nodiscard]] std::string& contents(const Path& path);
  /// Files below a directory, as paths.
  [[nodiscard]] std::vector<Path> files(const Path& directory);

private:
  friend class MemoryWriteFile;
  friend class MemoryReadFile;

  /// Counts a call; fails if it is its turn.
  void called(const char* action, const Path& path);
  [[nodiscard]] std::optional<int> find(const Path& path) const;
  [[nodiscard]] int must_find(const char* action, const Path& path) const;
  void record(Operation operation);

  Disk disk_;
  std::vector<Operation> log_;
  int next_ = 1;
};

/// The disk after the first `count` operations, as a killed process leaves it.
[[nodiscard]] Disk after_kill(const std::vector<Operation>& log, size_t count, Disk start = {});

/// The same when the power fails: of the operations that no sync covers, any subset may be missing,
/// and an uncovered write may be torn at a multiple of 512 bytes.
[[nodiscard]] Disk after_power_loss(
    const std::vector<Operation>& log, size_t count, std::mt19937& random, Disk start = {}
);

} // namespace mh::test
