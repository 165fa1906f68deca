#include "core/base/host_name.hpp"
#include "core/storage/file_lock.hpp"
#include "core/storage/file_system.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sstream>
#include <thread>

namespace mh {

namespace {

/// Calls again while a signal interrupts, and turns -1 into a StorageError.
template <class Call>
auto checked(const char* action, const Path& path, const Call& call) {
  while (true) {
    const auto result = call();
    if (result >= 0) {
      return result;
    }
    if (errno != EINTR) {
      throw StorageError(action, path, errno);
    }
  }
}

class Descriptor {
public:
  Descriptor(const char* action, const Path& path, int flags)
      : path_(path)
      , number_(checked(action, path, [&] {
        return ::open(path.c_str(), flags | O_CLOEXEC | O_NOCTTY, 0666);
      })) {}

  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  ~Descriptor() { ::close(number_); }

  [[nodiscard]] int number() const { return number_; }

  [[nodiscard]] const Path& path() const { return path_; }

private:
  Path path_;
  int number_;
};

class PosixWriteFile final : public WriteFile {
public:
  explicit PosixWriteFile(const Path& path)
      : file_("create", path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW) {}

  PosixWriteFile(const Path& path, uint64_t size)
      : file_("open", path, O_WRONLY | O_APPEND | O_NOFOLLOW) {
    checked("cut", path, [&] { return ::ftruncate(file_.number(), static_cast<off_t>(size)); });
  }

  size_t write(std::span<const std::byte> bytes) override {
    return static_cast<size_t>(checked("write", file_.path(), [&] {
      return ::write(file_.number(), bytes.data(), bytes.size());
    }));
  }

  void sync() override {
    checked("sync", file_.path(), [&] { return ::fdatasync(file_.number()); });
  }

private:
  Descriptor file_;
};

/// Writes whole blocks of an aligned buffer with O_DIRECT, and what is left over as other files are written.
class DirectWriteFile final : public WriteFile {
public:
  explicit DirectWriteFile(const Path& path)
      : file_("create", path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW) {}

  size_t write(std::span<const std::byte> bytes) override {
    if (buffer_ == nullptr) {
      buffer_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, kBlock)));
      if (buffer_ == nullptr) {
        throw std::bad_alloc();
      }
    }
    const size_t taken = std::min(bytes.size(), kBlock - filled_);
    std::memcpy(buffer_.get() + filled_, bytes.data(), taken);
    filled_ += taken;
    if (filled_ == kBlock) {
      set_direct(true);
      flush();
    }
    return taken;
  }

  void sync() override {
    set_direct(false);
    flush();
    checked("sync", file_.path(), [&] { return ::fdatasync(file_.number()); });
  }

private:
  static constexpr size_t kAlignment = 4096; // bytes; of memory, offset and length
  static constexpr size_t kBlock = 4 << 20;  // bytes of a call

  /// Not every file system has it, and none needs it.
  void set_direct(bool direct) {
    if (direct != direct_) {
      direct_ = ::fcntl(file_.number(), F_SETFL, direct ? O_DIRECT : 0) == 0 && direct;
    }
  }

  void flush() {
    for (size_t done = 0; done < filled_;) {
      const ssize_t more = ::write(file_.number(), buffer_.get() + done, filled_ - done);
      if (more >= 0) {
        done += static_cast<size_t>(more);
        // A full disk takes part of a block, and says at the next call why.
        set_direct(direct_ && done % kAlignment == 0);
      } else if (errno == EINVAL && direct_) {
        set_direct(false);
      } else if (errno != EINTR) {
        throw StorageError("write", file_.path(), errno);
      }
    }
    filled_ = 0;
  }

  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  Descriptor file_;
  std::unique_ptr<std::byte, Free> buffer_; // kBlock bytes once something was written
  size_t filled_ = 0;
  bool direct_ = false;
};

class PosixReadFile final : public ReadFile {
public:
  explicit PosixReadFile(const Path& path)
      : file_("open", path, O_RDONLY | O_NONBLOCK) {
    struct stat status {};

    checked("examine", path, [&] { return ::fstat(file_.number(), &status); });
    if (!S_ISREG(status.st_mode)) {
      throw Error(path.string() + ": no regular file", "", exit_code::data);
    }
    size_ = static_cast<uint64_t>(status.st_size);
  }

  [[nodiscard]] uint64_t size() const override { return size_; }

  [[nodiscard]] size_t read(uint64_t offset, std::span<std::byte> into) override {
    return static_cast<size_t>(checked("read", file_.path(), [&] {
      return ::pread(file_.number(), into.data(), into.size(), static_cast<off_t>(offset));
    }));
  }

private:
  Descriptor file_;
  uint64_t size_ = 0;
};

Path or_here(const Path& directory) {
  return directory.empty() ? "." : directory;
}

/// The machine's own files.
class PosixFileSystem final : public FileSystem {
public:
  std::unique_ptr<WriteFile> create(const Path& path) override {
    return std::make_unique<PosixWriteFile>(path);
  }

  std::unique_ptr<WriteFile> create_large(const Path& path) override {
    return std::make_unique<DirectWriteFile>(path);
  }

  std::unique_ptr<WriteFile> extend(const Path& path, uint64_t size) override {
    return std::make_unique<PosixWriteFile>(path, size);
  }

  std::unique_ptr<ReadFile> open(const Path& path) override {
    return std::make_unique<PosixReadFile>(path);
  }

  Kind kind(const Path& path) override;
  std::vector<std::string> list(const Path& directory) override;

  void make_directory(const Path& directory) override {
    checked("make the folder", directory, [&] { return ::mkdir(directory.c_str(), 0777); });
  }

  void rename(const Path& from, const Path& to) override {
    checked("rename", from, [&] { return ::rename(from.c_str(), to.c_str()); });
  }

  void rename_new(const Path& from, const Path& to) override;

  void remove(const Path& path) override {
    checked("remove", path, [&] { return std::remove(path.c_str()); });
  }

  void sync_directory(const Path& directory) override {
    const Descriptor folder("open", or_here(directory), O_RDONLY | O_DIRECTORY);
    checked("sync", folder.path(), [&] { return ::fsync(folder.number()); });
  }
};

FileSystem::Kind PosixFileSystem::kind(const Path& path) {
  struct stat status {};

  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) {
      return Kind::none;
    }
    throw StorageError("examine", path, errno);
  }
  return S_ISREG(status.st_mode)   ? Kind::file
         : S_ISDIR(status.st_mode) ? Kind::directory
                                   : Kind::other;
}

std::vector<std::string> PosixFileSystem::list(const Path& directory) {
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(
      ::opendir(or_here(directory).c_str()), ::closedir
  );
  if (!stream) {
    throw StorageError("list", directory, errno);
  }
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* entry = ::readdir(stream.get());
    if (entry == nullptr) {
      break;
    }
    const std::string name = entry->d_name;
    if (name != "." && name != "..") {
      names.push_back(name);
    }
  }
  if (errno != 0) {
    throw StorageError("list", directory, errno);
  }
  std::sort(names.begin(), names.end());
  return names;
}

// A link to a name that is taken fails, everywhere; so does renameat2, where file systems have it.
void PosixFileSystem::rename_new(const Path& from, const Path& to) {
  const auto renamed = [&] {
    return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE);
  };
  if (renamed() == 0) {
    return;
  }
  if (errno != EINVAL && errno != ENOSYS && errno != EINTR) {
    throw StorageError("rename", errno == EEXIST ? to : from, errno);
  }
  checked("rename", to, [&] { return ::link(from.c_str(), to.c_str()); });
  remove(from);
}

/// Takes a lock that no process holds. lock_owner() holds it for a moment, so it is tried some
/// more times.
bool take(int descriptor) {
  constexpr int kTries = 10;
  for (int i = 1; ::flock(descriptor, LOCK_EX | LOCK_NB) != 0; ++i) {
    if ((errno != EWOULDBLOCK && errno != EINTR) || i == kTries) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

/// Not needed for the lock: a full disk, say, is no reason to stop.
void sign(int descriptor) {
  const std::string text = host_name() + " " + std::to_string(::getpid()) + "\n";
  [[maybe_unused]] const bool is_signed =
      ::ftruncate(descriptor, 0) == 0 && ::pwrite(descriptor, text.data(), text.size(), 0) > 0;
}

} // namespace

FileSystem& file_system() {
  static PosixFileSystem files;
  return files;
}

FileLock::FileLock(const Path& path)
    : descriptor_(checked("create", path, [&] {
      return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    })) {
  if (take(descriptor_)) {
    sign(descriptor_);
    return;
  }
  const int code = errno;
  ::close(descriptor_);
  if (code != EWOULDBLOCK) {
    throw StorageError("lock", path, code);
  }
  const auto owner = lock_owner(path);
  throw Error(
      path.parent_path().string() + ": another run is writing to this folder" +
          (owner ? " (process " + std::to_string(owner->process) + " of " + owner->host + ")" : ""),
      "wait for it, stop it, or choose another folder"
  );
}

FileLock::~FileLock() {
  ::close(descriptor_);
}

std::optional<HeldFile>
HeldFile::take(const Path& path, As as, const std::function<void()>& waits) {
  const int access = as == As::shared ? O_RDONLY : O_RDWR;
  const int descriptor = ::open(path.c_str(), access | O_CLOEXEC | O_NOFOLLOW);
  if (descriptor < 0) {
    if (errno == ENOENT || errno == ENOTDIR) {
      return std::nullopt;
    }
    throw StorageError("open", path, errno);
  }
  HeldFile held(descriptor);
  const int how = as == As::shared ? LOCK_SH : LOCK_EX;
  if (::flock(descriptor, how | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK && as == As::if_free) {
      return std::nullopt;
    }
    if (errno == EWOULDBLOCK && waits) {
      waits();
    }
    checked("lock", path, [&] { return ::flock(descriptor, how); });
  }

  struct stat mine {
  }, there{};

  const bool same = ::fstat(descriptor, &mine) == 0 && ::lstat(path.c_str(), &there) == 0 &&
                    mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
  return same ? std::optional(std::move(held)) : std::nullopt;
}

HeldFile::~HeldFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

std::optional<LockOwner> lock_owner(const Path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY);
  if (descriptor < 0) {
    return std::nullopt;
  }
  std::array<char, 320> text{};
  const auto size = ::pread(descriptor, text.data(), text.size() - 1, 0);
  const bool holds = ::flock(descriptor, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(descriptor);
  LockOwner owner{.host = {}, .process = 0, .holds = holds};
  std::istringstream words(size > 0 ? text.data() : "");
  return words >> owner.host >> owner.process ? std::optional(owner) : std::nullopt;
}

} // namespace mh
