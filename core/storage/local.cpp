#include "core/storage/local.hpp"

#include <algorithm>
#include <cerrno>
#include <random>

namespace mh {

namespace {

constexpr std::string_view kMark = ".upload-"; // then the upload's own letters
constexpr size_t kLetters = 12;

/// Two writers of one name never share a temporary file: the second may not know that the first is
/// still there.
std::string unfinished_name(const Path& path) {
  std::random_device device;
  std::string name = path.string() + std::string(kMark);
  for (size_t i = 0; i < kLetters; ++i) {
    name += "0123456789abcdefghijklmnopqrstuv"[device() % 32];
  }
  return name;
}

bool is_unfinished(const std::string& name) {
  return name.size() > kMark.size() + kLetters &&
         name.compare(name.size() - kLetters - kMark.size(), kMark.size(), kMark) == 0;
}

class LocalUpload final : public Upload {
public:
  LocalUpload(FileSystem& files, const Path& path, Storage::Existing existing)
      : files_(files)
      , path_(path)
      , existing_(existing)
      , unfinished_(unfinished_name(path)) {
    make_directories(files_, path_.parent_path());
    file_ = files_.create_large(unfinished_);
  }

  ~LocalUpload() override {
    if (!finished_) {
      file_.reset();
      try {
        files_.remove(unfinished_);
      } catch (const Error&) { // `remove_unfinished` finds it
      }
    }
  }

  void write(std::span<const std::byte> bytes) override { write_all(*file_, bytes, path_); }

  void finish() override {
    file_->sync();
    file_.reset();
    if (existing_ == Storage::Existing::refuse) {
      files_.rename_new(unfinished_, path_);
    } else {
      files_.rename(unfinished_, path_);
    }
    finished_ = true;
    files_.sync_directory(path_.parent_path());
  }

private:
  FileSystem& files_;
  Path path_;
  Storage::Existing existing_;
  Path unfinished_;
  std::unique_ptr<WriteFile> file_;
  bool finished_ = false;
};

} // namespace

std::unique_ptr<Upload> LocalStorage::put(const Path& path, Existing existing) {
  return std::make_unique<LocalUpload>(files_, path, existing);
}

std::unique_ptr<ReadFile> LocalStorage::get(const Path& path) {
  return files_.open(path);
}

// Links stand for what they point to: hubs keep a model's files as links to shared ones.
bool LocalStorage::contains(const Path& path) {
  const FileSystem::Kind kind = files_.kind(path);
  return kind != FileSystem::Kind::none && kind != FileSystem::Kind::directory;
}

std::vector<Storage::Item> LocalStorage::list(const Path& prefix) {
  std::vector<Item> items;
  const FileSystem::Kind kind = files_.kind(prefix);
  if (kind == FileSystem::Kind::none || kind == FileSystem::Kind::file) {
    return items;
  }
  for (const std::string& name : files_.list(prefix)) {
    if (!is_unfinished(name)) {
      items.push_back({name, files_.kind(prefix / name) != FileSystem::Kind::file});
    }
  }
  return items;
}

void LocalStorage::remove(const Path& path) {
  if (files_.kind(path) != FileSystem::Kind::none) {
    files_.remove(path);
    files_.sync_directory(path.parent_path());
  }
}

void LocalStorage::remove_all(const Path& prefix) {
  if (files_.kind(prefix) != FileSystem::Kind::none) {
    remove_tree(files_, prefix);
  }
}

void LocalStorage::each_unfinished(
    const Path& prefix, const std::function<void(const Path& file)>& see
) {
  if (files_.kind(prefix) != FileSystem::Kind::directory) {
    return;
  }
  for (const std::string& name : files_.list(prefix)) {
    if (is_unfinished(name)) {
      see(prefix / name);
    } else {
      each_unfinished(prefix / name, see);
    }
  }
}

std::vector<Storage::Unfinished> LocalStorage::unfinished(const Path& prefix) {
  std::vector<Unfinished> found;
  each_unfinished(prefix, [&](const Path& file) {
    std::string name = file.lexically_relative(prefix);
    name.resize(name.size() - kLetters - kMark.size());
    found.push_back({std::move(name), files_.open(file)->size()});
  });
  std::ranges::sort(found, {}, &Unfinished::name);
  return found;
}

void LocalStorage::remove_unfinished(const Path& prefix) {
  each_unfinished(prefix, [&](const Path& file) { files_.remove(file); });
}

Storage& local_storage() {
  static LocalStorage storage;
  return storage;
}

} // namespace mh
