#pragma once
/// Objects that a client of libarrow reads. Without libarrow each reader says that it is not there.

#include <megahost/storage.hpp>

#include <memory>
#include <string>
#include <vector>

namespace clouds {

struct GoogleOptions {
  std::string endpoint{};
  bool anonymous = false;
  int64_t retry = 60; ///< seconds
};

struct AzureOptions {
  std::string account{}, endpoint{};
  bool anonymous = false;
};

/// The secret of an account of Azure; without either, the environment and the machine give one.
struct AzureSecret {
  std::string key{}, signature{}; ///< the account's key, or a shared access signature
};

/// `name` is "bucket/a/b"; `path` is for messages.
///
/// Thread:  any
/// Throws:  mh::StorageError, with ENOENT if there is no such object
class ObjectReader {
public:
  virtual ~ObjectReader();
  [[nodiscard]] virtual std::unique_ptr<mh::ReadFile>
  get(const std::string& name, const mh::Path& path) = 0;
  [[nodiscard]] virtual bool contains(const std::string& name, const mh::Path& path) = 0;
  /// The names of all objects below a prefix, without the prefix.
  [[nodiscard]] virtual std::vector<std::string>
  below(const std::string& name, const mh::Path& path) = 0;
};

/// Credentials are Google's application default ones.
[[nodiscard]] std::unique_ptr<ObjectReader> read_google(const GoogleOptions& options);

/// `options` name the account.
[[nodiscard]] std::unique_ptr<ObjectReader>
read_azure(const AzureOptions& options, const AzureSecret& secret);

} // namespace clouds
