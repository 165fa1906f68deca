#pragma once
/// One storage for all paths: each goes to the storage plugin that its scheme names, one without a
/// scheme to this machine's files.

#include "core/model/plugin_call.hpp"
#include "megahost/schema.hpp"
#include "megahost/storage.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace mh {

class Host;

/// Throws:  what the storages throw, and mh::Error for a scheme that no plugin has
/// Thread:  any
class SchemeStorage final : public Storage {
public:
  /// Sets the host that opens plugins from now on: a host may be moved.
  void ask(Host& host);

  /// Options for one scheme, complete. A storage that is open already stays as it is where they are
  /// the same, and is made again where they are not.
  void set_options(const PluginSection& section);

  [[nodiscard]] std::unique_ptr<Upload> put(const Path& path, Existing existing) override;
  [[nodiscard]] std::unique_ptr<ReadFile> get(const Path& path) override;
  [[nodiscard]] bool contains(const Path& path) override;
  [[nodiscard]] std::vector<Item> list(const Path& prefix) override;
  void remove(const Path& path) override;
  void remove_all(const Path& prefix) override;
  [[nodiscard]] std::vector<Unfinished> unfinished(const Path& prefix) override;
  void remove_unfinished(const Path& prefix) override;

private:
  /// Kept by who uses it: other options make another.
  [[nodiscard]] std::shared_ptr<Storage> at(const Path& path);

  /// Makes a call of the storage that a path lies in, so that its faults can be named.
  template <class Work>
  decltype(auto) in_storage(const Path& path, const char* call, Work&& work) {
    const auto storage = at(path);
    return in_plugin(*storage, call, [&] { return std::forward<Work>(work)(*storage); });
  }

  std::mutex mutex_;
  Host* host_ = nullptr;
  std::map<std::string, Value, std::less<>> options_;
  std::map<std::string, std::shared_ptr<Storage>, std::less<>> open_;
};

} // namespace mh
