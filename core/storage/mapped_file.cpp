#include "core/storage/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace mh {

namespace {

std::span<std::byte> map(int descriptor, const Path& path) {
  struct stat status {};

  if (::fstat(descriptor, &status) != 0) {
    throw StorageError("examine", path, errno);
  }
  if (!S_ISREG(status.st_mode)) {
    throw Error(path.string() + ": no regular file", "", exit_code::data);
  }
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) {
    return {};
  }
  void* start =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, descriptor, 0);
  if (start == MAP_FAILED) {
    throw StorageError("map", path, errno);
  }
  return {static_cast<std::byte*>(start), size};
}

} // namespace

MappedFile::MappedFile(const Path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) {
    throw StorageError("open", path, errno);
  }
  const std::unique_ptr<const int, void (*)(const int*)> closer(&descriptor, [](const int* open) {
    ::close(*open);
  });
  bytes_ = map(descriptor, path);
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    ::munmap(bytes_.data(), bytes_.size());
  }
}

} // namespace mh
