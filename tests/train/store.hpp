#pragma once
/// A storage as another plugin would bring it: objects in memory, and how many bytes were read.

#include "megahost/storage.hpp"

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace runs {

class Store final : public mh::Storage {
public:
  std::map<std::string, std::string> objects;
  uint64_t bytes_read = 0;

  std::unique_ptr<mh::Upload> put(const mh::Path& path, Existing existing) override {
    if (existing == Existing::refuse && objects.contains(path.string())) {
      throw mh::StorageError("write", path, EEXIST);
    }
    return std::make_unique<Writer>(*this, path.string());
  }

  std::unique_ptr<mh::ReadFile> get(const mh::Path& path) override {
    if (!objects.contains(path.string())) {
      throw mh::StorageError("open", path, ENOENT);
    }
    return std::make_unique<Reader>(*this, objects[path.string()]);
  }

  bool contains(const mh::Path& path) override { return objects.contains(path.string()); }

  std::vector<Item> list(const mh::Path& prefix) override {
    const std::string start = prefix.string() + "/";
    std::map<std::string, bool> found;
    for (const auto& [name, text] : objects) {
      if (name.starts_with(start)) {
        const std::string rest = name.substr(start.size());
        found[rest.substr(0, rest.find('/'))] = rest.find('/') != std::string::npos;
      }
    }
    std::vector<Item> items;
    for (const auto& [name, is_prefix] : found) {
      items.push_back({name, is_prefix});
    }
    return items;
  }

  void remove(const mh::Path& path) override { objects.erase(path.string()); }

  void remove_all(const mh::Path& prefix) override {
    std::erase_if(objects, [start = prefix.string() + "/"](const auto& object) {
      return object.first.starts_with(start);
    });
  }

  void remove_unfinished(const mh::Path&) override {}

private:
  class Writer final : public mh::Upload {
  public:
    Writer(Store& store, std::string name)
        : store_(store)
        , name_(std::move(name)) {}

    void write(std::span<const std::byte> bytes) override {
      text_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }

    void finish() override { store_.objects[name_] = text_; }

  private:
    Store& store_;
    std::string name_, text_;
  };

  class Reader final : public mh::ReadFile {
  public:
    Reader(Store& store, std::string text)
        : store_(store)
        , text_(std::move(text)) {}

    [[nodiscard]] uint64_t size() const override { return text_.size(); }

    size_t read(uint64_t offset, std::span<std::byte> into) override {
      const size_t begin = std::min<uint64_t>(offset, text_.size());
      const size_t count = std::min(into.size(), text_.size() - begin);
      std::copy_n(std::as_bytes(std::span(text_)).data() + begin, count, into.data());
      store_.bytes_read += count;
      return count;
    }

  private:
    Store& store_;
    std::string text_;
  };
};

} // namespace runs
