#pragma once
/// The storage of paths `msc://PROFILE/PATH`: each is a path of a disk or of a store, which a
/// configuration of Multi-Storage Client gives a name.

#include "config.hpp"

#include <megahost/schema.hpp>
#include <megahost/storage.hpp>

#include <map>
#include <memory>
#include <mutex>

namespace msc {

class Msc final : public mh::Storage {
public:
  struct Config {
    std::string config{}; ///< the file; empty: where Multi-Storage Client looks
  };

  static void fields(mh::Fields<Config>& f);

  explicit Msc(
      const Config& config,
      const Args& = {},
      s3::EnvironmentReader environment = s3::process_environment()
  );

  [[nodiscard]] std::unique_ptr<mh::Upload> put(const mh::Path& path, Existing existing) override;
  [[nodiscard]] std::unique_ptr<mh::ReadFile> get(const mh::Path& path) override;
  [[nodiscard]] bool contains(const mh::Path& path) override;
  [[nodiscard]] std::vector<Item> list(const mh::Path& prefix) override;
  void remove(const mh::Path& path) override;
  void remove_all(const mh::Path& prefix) override;
  [[nodiscard]] std::vector<Unfinished> unfinished(const mh::Path& prefix) override;
  void remove_unfinished(const mh::Path& prefix) override;

private:
  /// The same place, in the storage that has it.
  struct Place {
    std::shared_ptr<mh::Storage> storage;
    mh::Path path;
  };

  /// The storage of a profile, and what it puts before a path.
  struct Opened {
    std::shared_ptr<mh::Storage> storage;
    std::string before;
  };

  /// Throws:  mh::Error for a path that leaves its profile's place, and for a profile that is not
  ///          there or not followed
  [[nodiscard]] Place at(const mh::Path& path);
  [[nodiscard]] Opened open(const std::string& profile);

  Config config_;
  s3::EnvironmentReader environment_;
  std::mutex mutex_;
  std::map<std::string, Opened> open_; ///< by profile
};

} // namespace msc
