#pragma once
/// The storage of paths `s3://BUCKET/KEY`.

#include "objects.hpp"

#include <megahost/schema.hpp>

namespace s3 {

class S3 final : public mh::Storage {
public:
  using Config = Options;

  static void fields(mh::Fields<Config>& f);

  /// `given` credentials come before those that are found.
  explicit S3(const Config& config, const Args& = {}, const Credentials& given = {});

  [[nodiscard]] std::unique_ptr<mh::Upload> put(const mh::Path& path, Existing existing) override;
  [[nodiscard]] std::unique_ptr<mh::ReadFile> get(const mh::Path& path) override;
  [[nodiscard]] bool contains(const mh::Path& path) override;
  [[nodiscard]] std::vector<Item> list(const mh::Path& prefix) override;
  void remove(const mh::Path& path) override;
  void remove_all(const mh::Path& prefix) override;
  [[nodiscard]] std::vector<Unfinished> unfinished(const mh::Path& prefix) override;
  void remove_unfinished(const mh::Path& prefix) override;

private:
  /// Every key below a prefix, and with a delimiter every prefix directly below it.
  void each_listed(
      const mh::Path& prefix,
      const std::string& delimiter,
      const std::function<void(const std::string& key, bool is_prefix)>& see
  );

  /// Every upload in parts below a prefix that has not finished.
  void each_unfinished(
      const mh::Path& prefix,
      const std::function<void(const std::string& key, const std::string& upload)>& see
  );

  std::shared_ptr<StoreClient> client_;
};

} // namespace s3
