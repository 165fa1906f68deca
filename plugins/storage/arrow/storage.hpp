#pragma once
/// The storages of paths `gs://BUCKET/PATH`, `az://CONTAINER/PATH` and
/// `abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH`, which libarrow reads.
///
/// Nothing is written there. Arrow's clients have no condition for a write, by which one of two
/// writers of a checkpoint would be refused, and of an upload that fails they leave an object with
/// what it had so far.

#include "readers.hpp"

#include <megahost/schema.hpp>

#include <map>
#include <mutex>

namespace clouds {

class ReadStorage : public mh::Storage {
public:
  [[nodiscard]] std::unique_ptr<mh::Upload> put(const mh::Path& path, Existing existing) override;
  [[nodiscard]] std::unique_ptr<mh::ReadFile> get(const mh::Path& path) override;
  [[nodiscard]] bool contains(const mh::Path& path) override;
  [[nodiscard]] std::vector<Item> list(const mh::Path& prefix) override;
  void remove(const mh::Path& path) override;
  void remove_all(const mh::Path& prefix) override;
  /// Does nothing: nothing was written.
  void remove_unfinished(const mh::Path& prefix) override;

protected:
  /// A path as its parts say it.
  struct Place {
    std::string account; ///< Azure's; Google has none
    std::string name;    ///< "bucket/a/b"
  };

  [[nodiscard]] virtual Place at(const mh::Path& path) const = 0;
  [[nodiscard]] virtual std::unique_ptr<ObjectReader> open(const std::string& account) const = 0;

private:
  ObjectReader& reader(const std::string& account);

  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<ObjectReader>> open_; ///< by account
};

class Google final : public ReadStorage {
public:
  using Config = GoogleOptions;

  static void fields(mh::Fields<Config>& f);

  explicit Google(const Config& config, const Args& = {})
      : config_(config) {}

protected:
  [[nodiscard]] Place at(const mh::Path& path) const override;
  [[nodiscard]] std::unique_ptr<ObjectReader> open(const std::string& account) const override;

private:
  Config config_;
};

class Azure final : public ReadStorage {
public:
  using Config = AzureOptions;

  static void fields(mh::Fields<Config>& f);

  /// A `secret` comes before those of the environment.
  explicit Azure(const Config& config, const Args& = {}, const AzureSecret& secret = {})
      : config_(config)
      , secret_(secret) {}

protected:
  [[nodiscard]] Place at(const mh::Path& path) const override;
  [[nodiscard]] std::unique_ptr<ObjectReader> open(const std::string& account) const override;

private:
  Config config_;
  AzureSecret secret_;
};

} // namespace clouds
