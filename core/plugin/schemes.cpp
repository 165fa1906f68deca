#include "core/plugin/schemes.hpp"

#include "core/base/text.hpp"
#include "megahost/host.hpp"

namespace mh {

void SchemeStorage::ask(Host& host) {
  const std::lock_guard lock(mutex_);
  host_ = &host;
}

void SchemeStorage::set_options(const PluginSection& section) {
  const std::lock_guard lock(mutex_);
  const auto set = options_.find(section.use);
  if (set == options_.end() || !(set->second == section.options)) {
    options_[section.use] = section.options;
    open_.erase(section.use);
  }
}

std::shared_ptr<Storage> SchemeStorage::at(const Path& path) {
  const auto scheme = scheme_of(path.native());
  if (!scheme) {
    return {std::shared_ptr<Storage>(), &local_storage()}; // which lives on
  }
  const std::lock_guard lock(mutex_);
  auto& storage = open_[std::string(*scheme)];
  if (storage == nullptr) {
    const Registry::Entry* entry = host_->find(Kind::storage, *scheme);
    if (entry == nullptr) {
      throw Error(
          path.string() + ": no plugin offers the storage \"" + std::string(*scheme) + "\"",
          "there are " + alternatives(host_->names(Kind::storage)) +
              "; megahost plugins install adds others"
      );
    }
    const auto given = options_.find(*scheme);
    storage = given == options_.end() ? Registry::make<Storage>(*entry)
                                      : Registry::make_complete<Storage>(*entry, given->second, {});
  }
  return storage;
}

std::unique_ptr<Upload> SchemeStorage::put(const Path& path, Existing existing) {
  return in_storage(path, "put", [&](Storage& storage) { return storage.put(path, existing); });
}

std::unique_ptr<ReadFile> SchemeStorage::get(const Path& path) {
  return in_storage(path, "get", [&](Storage& storage) { return storage.get(path); });
}

bool SchemeStorage::contains(const Path& path) {
  return in_storage(path, "contains", [&](Storage& storage) { return storage.contains(path); });
}

std::vector<Storage::Item> SchemeStorage::list(const Path& prefix) {
  return in_storage(prefix, "list", [&](Storage& storage) { return storage.list(prefix); });
}

void SchemeStorage::remove(const Path& path) {
  in_storage(path, "remove", [&](Storage& storage) { storage.remove(path); });
}

void SchemeStorage::remove_all(const Path& prefix) {
  in_storage(prefix, "remove_all", [&](Storage& storage) { storage.remove_all(prefix); });
}

std::vector<Storage::Unfinished> SchemeStorage::unfinished(const Path& prefix) {
  return in_storage(prefix, "unfinished", [&](Storage& storage) {
    return storage.unfinished(prefix);
  });
}

void SchemeStorage::remove_unfinished(const Path& prefix) {
  in_storage(prefix, "remove_unfinished", [&](Storage& storage) {
    storage.remove_unfinished(prefix);
  });
}

} // namespace mh
