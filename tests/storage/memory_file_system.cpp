#include "memory_file_system.hpp"

#include <algorithm>
#include <cerrno>

namespace mh::test {

namespace {

constexpr size_t kSector = 512;

void apply(Disk& disk, const Operation& operation) {
  using Kind = Operation::Kind;
  const auto erase = [&disk, &operation] {
    auto& names = disk.inodes[operation.directory].entries;
    const auto entry = names.find(operation.name);
    if (entry != names.end() && entry->second == operation.inode) {
      names.erase(entry);
    }
  };
  switch (operation.kind) {
  case Kind::link:
    disk.inodes[operation.inode].directory = operation.is_directory;
    disk.inodes[operation.directory].entries[operation.name] = operation.inode;
    break;
  case Kind::unlink:
    erase();
    break;
  case Kind::rename:
    erase();
    disk.inodes[operation.to_directory].entries[operation.to_name] = operation.inode;
    break;
  case Kind::write: {
    std::string& data = disk.inodes[operation.inode].data;
    data.resize(std::max(data.size(), operation.offset + operation.data.size()));
    data.replace(operation.offset, operation.data.size(), operation.data);
    break;
  }
  case Kind::cut:
    disk.inodes[operation.inode].data.resize(operation.offset);
    break;
  case Kind::sync:
    break;
  }
}

} // namespace

class MemoryWriteFile final : public WriteFile {
public:
  MemoryWriteFile(MemoryFileSystem& files, Path path, int inode, size_t offset = 0)
      : files_(files)
      , path_(std::move(path))
      , inode_(inode)
      , offset_(offset) {}

  size_t write(std::span<const std::byte> bytes) override {
    files_.called("write", path_);
    const size_t count = std::min(bytes.size(), files_.longest_write);
    const auto* text = reinterpret_cast<const char*>(bytes.data());
    Operation operation{
        .kind = Operation::Kind::write, .inode = inode_, .name = {}, .to_name = {}, .data = {}};
    operation.offset = offset_;
    operation.data.assign(text, count);
    files_.record(std::move(operation));
    offset_ += count;
    return count;
  }

  void sync() override {
    files_.called("sync", path_);
    files_.record(
        {.kind = Operation::Kind::sync, .inode = inode_, .name = {}, .to_name = {}, .data = {}}
    );
  }

private:
  MemoryFileSystem& files_;
  Path path_;
  int inode_;
  size_t offset_;
};

class MemoryReadFile final : public ReadFile {
public:
  MemoryReadFile(MemoryFileSystem& files, Path path, const std::string& data)
      : files_(files)
      , path_(std::move(path))
      , data_(data) {}

  [[nodiscard]] uint64_t size() const override { return data_.size(); }

  [[nodiscard]] size_t read(uint64_t offset, std::span<std::byte> into) override {
    files_.called("read", path_);
    const size_t begin = std::min<uint64_t>(offset, data_.size());
    const size_t count = std::min({into.size(), data_.size() - begin, files_.longest_write});
    std::copy_n(std::as_bytes(std::span(data_)).data() + begin, count, into.data());
    files_.bytes_read += count;
    return count;
  }

private:
  MemoryFileSystem& files_;
  Path path_;
  std::string data_;
};

void MemoryFileSystem::called(const char* action, const Path& path) {
  ++calls;
  if (fault && (calls == fault->at || (fault->forever && calls > fault->at))) {
    throw StorageError(action, path, fault->code);
  }
}

std::optional<int> MemoryFileSystem::find(const Path& path) const {
  int at = 0;
  for (const Path& part : path.relative_path()) {
    const Inode& inode = disk_.inodes.at(at);
    const auto entry = inode.entries.find(part.string());
    if (entry == inode.entries.end()) {
      return std::nullopt;
    }
    at = entry->second;
  }
  return at;
}

int MemoryFileSystem::must_find(const char* action, const Path& path) const {
  const auto found = find(path);
  if (!found) {
    throw StorageError(action, path, ENOENT);
  }
  return *found;
}

void MemoryFileSystem::record(Operation operation) {
  apply(disk_, operation);
  log_.push_back(std::move(operation));
}

std::unique_ptr<WriteFile> MemoryFileSystem::create(const Path& path) {
  called("create", path);
  const int directory = must_find("create", path.parent_path());
  if (find(path)) {
    throw StorageError("create", path, EEXIST);
  }
  const int inode = next_++;
  record(
      {.kind = Operation::Kind::link,
       .inode = inode,
       .directory = directory,
       .name = path.filename().string(),
       .to_name = {},
       .data = {}}
  );
  return std::make_unique<MemoryWriteFile>(*this, path, inode);
}

std::unique_ptr<WriteFile> MemoryFileSystem::extend(const Path& path, uint64_t size) {
  called("open", path);
  const int inode = must_find("open", path);
  Operation operation{
      .kind = Operation::Kind::cut, .inode = inode, .name = {}, .to_name = {}, .data = {}};
  operation.offset = size;
  record(std::move(operation));
  return std::make_unique<MemoryWriteFile>(*this, path, inode, size);
}

std::unique_ptr<ReadFile> MemoryFileSystem::open(const Path& path) {
  called("open", path);
  const Inode& inode = disk_.inodes.at(must_find("open", path));
  if (inode.directory) {
    throw Error(path.string() + ": no regular file", "", exit_code::data);
  }
  return std::make_unique<MemoryReadFile>(*this, path, inode.data);
}

FileSystem::Kind MemoryFileSystem::kind(const Path& path) {
  called("examine", path);
  const auto found = find(path);
  return !found ? Kind::none : disk_.inodes.at(*found).directory ? Kind::directory : Kind::file;
}

std::vector<std::string> MemoryFileSystem::list(const Path& directory) {
  called("list", directory);
  std::vector<std::string> names;
  for (const auto& [name, inode] : disk_.inodes.at(must_find("list", directory)).entries) {
    names.push_back(name);
  }
  return names;
}

void MemoryFileSystem::make_directory(const Path& directory) {
  called("make the folder", directory);
  const int parent = must_find("make the folder", directory.parent_path());
  if (find(directory)) {
    throw StorageError("make the folder", directory, EEXIST);
  }
  record(
      {.kind = Operation::Kind::link,
       .inode = next_++,
       .directory = parent,
       .name = directory.filename().string(),
       .to_name = {},
       .is_directory = true,
       .data = {}}
  );
}

void MemoryFileSystem::rename(const Path& from, const Path& to) {
  called("rename", from);
  const int inode = must_find("rename", from);
  const auto target = find(to);
  if (target && !disk_.inodes.at(*target).entries.empty()) {
    throw StorageError("rename", from, ENOTEMPTY);
  }
  record(
      {.kind = Operation::Kind::rename,
       .inode = inode,
       .directory = must_find("rename", from.parent_path()),
       .name = from.filename().string(),
       .to_directory = must_find("rename", to.parent_path()),
       .to_name = to.filename().string(),
       .data = {}}
  );
}

void MemoryFileSystem::rename_new(const Path& from, const Path& to) {
  if (find(to)) {
    throw StorageError("rename", to, EEXIST);
  }
  rename(from, to);
}

void MemoryFileSystem::remove(const Path& path) {
  called("remove", path);
  const int inode = must_find("remove", path);
  if (!disk_.inodes.at(inode).entries.empty()) {
    throw StorageError("remove", path, ENOTEMPTY);
  }
  record(
      {.kind = Operation::Kind::unlink,
       .inode = inode,
       .directory = must_find("remove", path.parent_path()),
       .name = path.filename().string(),
       .to_name = {},
       .data = {}}
  );
}

void MemoryFileSystem::sync_directory(const Path& directory) {
  called("sync", directory);
  record(
      {.kind = Operation::Kind::sync,
       .inode = must_find("sync", directory),
       .name = {},
       .to_name = {},
       .data = {}}
  );
}

std::string& MemoryFileSystem::contents(const Path& path) {
  return disk_.inodes.at(must_find("find", path)).data;
}

std::vector<Path> MemoryFileSystem::files(const Path& directory) {
  std::vector<Path> found;
  for (const auto& [name, inode] : disk_.inodes.at(must_find("list", directory)).entries) {
    if (!disk_.inodes.at(inode).directory) {
      found.push_back(directory / name);
      continue;
    }
    for (Path& path : files(directory / name)) {
      found.push_back(std::move(path));
    }
  }
  return found;
}

Disk after_kill(const std::vector<Operation>& log, size_t count, Disk start) {
  for (const Operation& operation : std::span(log).first(count)) {
    apply(start, operation);
  }
  return start;
}

namespace {

bool is_covered(const std::vector<Operation>& log, size_t at, size_t count) {
  using Kind = Operation::Kind;
  const Operation& done = log[at];
  const auto synced = [&](int inode) {
    return std::any_of(
        log.begin() + static_cast<int64_t>(at),
        log.begin() + static_cast<int64_t>(count),
        [inode](const Operation& later) { return later.kind == Kind::sync && later.inode == inode; }
    );
  };
  switch (done.kind) {
  case Kind::write:
  case Kind::cut:
    return synced(done.inode);
  case Kind::rename:
    return synced(done.directory) && synced(done.to_directory);
  case Kind::link:
  case Kind::unlink:
    return synced(done.directory);
  case Kind::sync:
    return true;
  }
  return true;
}

} // namespace

Disk after_power_loss(
    const std::vector<Operation>& log, size_t count, std::mt19937& random, Disk start
) {
  const uint32_t kept_in_8 = random() % 9;
  for (size_t at = 0; at < count; ++at) {
    if (is_covered(log, at, count)) {
      apply(start, log[at]);
    } else if (random() % 8 < kept_in_8) {
      Operation operation = log[at];
      if (operation.kind == Operation::Kind::write && random() % 2 == 0) {
        const size_t sectors = operation.data.size() / kSector + 1;
        const size_t keep = std::min(operation.data.size(), random() % sectors * kSector);
        std::fill(operation.data.begin() + static_cast<int64_t>(keep), operation.data.end(), '\0');
      }
      apply(start, operation);
    } else if (log[at].kind == Operation::Kind::link) {
      start.inodes[log[at].inode].directory = log[at].is_directory; // there, without a name
    }
  }
  return start;
}

} // namespace mh::test
