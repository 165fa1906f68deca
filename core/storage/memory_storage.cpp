#include "core/storage/memory_storage.hpp"

#include "megahost/shuffle.hpp"

#include <algorithm>
#include <cerrno>

namespace mh {

class MemoryUpload final : public Upload {
public:
  MemoryUpload(MemoryStorage& storage, Path path, Storage::Existing existing)
      : storage_(storage)
      , path_(std::move(path))
      , existing_(existing) {}

  void write(std::span<const std::byte> bytes) override {
    const std::lock_guard lock(storage_.mutex_);
    storage_.called("write", path_);
    text_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  void finish() override {
    const std::lock_guard lock(storage_.mutex_);
    storage_.called("write", path_);
    if (existing_ == Storage::Existing::refuse && storage_.objects_.contains(path_.string())) {
      throw StorageError("write", path_, EEXIST);
    }
    storage_.objects_[path_.string()] = std::move(text_);
    storage_.changed();
  }

private:
  MemoryStorage& storage_;
  Path path_;
  Storage::Existing existing_;
  std::string text_;
};

class MemoryReadFile final : public ReadFile {
public:
  MemoryReadFile(MemoryStorage& storage, Path path, std::string data)
      : storage_(storage)
      , path_(std::move(path))
      , data_(std::move(data)) {}

  [[nodiscard]] uint64_t size() const override { return data_.size(); }

  [[nodiscard]] size_t read(uint64_t offset, std::span<std::byte> into) override {
    const std::lock_guard lock(storage_.mutex_);
    storage_.called("read", path_);
    const size_t begin = std::min<uint64_t>(offset, data_.size());
    const size_t count = std::min(into.size(), data_.size() - begin);
    std::copy_n(std::as_bytes(std::span(data_)).data() + begin, count, into.data());
    storage_.bytes_read += count;
    return count;
  }

  [[nodiscard]] std::string version() const override { return std::to_string(hash_text(data_)); }

private:
  MemoryStorage& storage_;
  Path path_;
  std::string data_;
};

void MemoryStorage::called(const char* action, const Path& path) {
  ++calls;
  if (fault && (calls == fault->at || (fault->forever && calls > fault->at))) {
    throw StorageError(action, path, fault->code);
  }
}

void MemoryStorage::changed() {
  history_.push_back(objects_);
}

std::unique_ptr<Upload> MemoryStorage::put(const Path& path, Existing existing) {
  const std::lock_guard lock(mutex_);
  called("create", path);
  return std::make_unique<MemoryUpload>(*this, path, existing);
}

std::unique_ptr<ReadFile> MemoryStorage::get(const Path& path) {
  const std::lock_guard lock(mutex_);
  called("open", path);
  const auto found = objects_.find(path.string());
  if (found == objects_.end()) {
    throw StorageError("open", path, ENOENT);
  }
  return std::make_unique<MemoryReadFile>(*this, path, found->second);
}

bool MemoryStorage::contains(const Path& path) {
  const std::lock_guard lock(mutex_);
  called("examine", path);
  return objects_.contains(path.string());
}

std::vector<Storage::Item> MemoryStorage::list(const Path& prefix) {
  const std::lock_guard lock(mutex_);
  called("list", prefix);
  const std::string start = (prefix / "").string();
  std::vector<Item> items;
  for (auto at = objects_.lower_bound(start); at != objects_.end() && at->first.starts_with(start);
       ++at) {
    const std::string rest = at->first.substr(start.size());
    const Item item{rest.substr(0, rest.find('/')), rest.find('/') != std::string::npos};
    if (items.empty() || !(items.back() == item)) {
      items.push_back(item);
    }
  }
  return items;
}

void MemoryStorage::remove(const Path& path) {
  const std::lock_guard lock(mutex_);
  called("remove", path);
  if (objects_.erase(path.string()) > 0) {
    changed();
  }
}

// Each object goes by itself: who stops in between leaves the others.
void MemoryStorage::remove_all(const Path& prefix) {
  const std::string start = (prefix / "").string();
  while (true) {
    const std::lock_guard lock(mutex_);
    called("remove", prefix);
    const auto at = objects_.lower_bound(start);
    if (at == objects_.end() || !at->first.starts_with(start)) {
      return;
    }
    objects_.erase(at);
    changed();
  }
}

void MemoryStorage::remove_unfinished(const Path& prefix) {
  const std::lock_guard lock(mutex_);
  called("remove", prefix); // an upload of this store ends with its process
}

std::string& MemoryStorage::contents(const Path& path) {
  const auto found = objects_.find(path.string());
  if (found == objects_.end()) {
    throw StorageError("find", path, ENOENT);
  }
  return found->second;
}

} // namespace mh
