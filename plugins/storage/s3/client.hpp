#pragma once
/// Requests to a store: addressed, signed, tried again, and redirected to a bucket's region.
///
/// Source:  Amazon S3 API Reference, "Error responses"; User Guide, "Making requests", "Virtual
///          hosting of buckets"; AWS SDKs and Tools Reference Guide, "Retry behavior"

#include "credentials.hpp"

#include <megahost/storage.hpp>

#include <functional>

namespace s3 {

/// Options of the plugin.
struct Options {
  std::string endpoint{}, region{}, profile{}, addressing = "auto", ca_file{};
  std::string sign_payload = "auto";
  bool anonymous = false, checksums = true;
  int64_t part_size = 16, connections = 8, tries = 8, stall = 30;
};

/// "s3://bucket/a/b".
struct ObjectPlace {
  std::string bucket, key;
};

/// Throws:  mh::Error for what is no such path, or has parts . or .. or a key of over 1,024 bytes
[[nodiscard]] ObjectPlace place_of(const mh::Path& path);

struct Request {
  std::string action; ///< for messages: "read"
  mh::Path path;      ///< for messages, and where `place` is from
  std::string method = "GET";
  ObjectPlace place{};
  Query query{};
  Headers headers{};
  std::string_view body{};
  std::span<std::byte> into{}; ///< the same as HttpRequest::into
};

struct Reply : HttpReply {
  int tries = 1;      ///< number of tries that were made
  std::string code{}; ///< "NoSuchKey", of an answer that is an error
};

/// Thread:  any
class StoreClient {
public:
  explicit StoreClient(
      const Options& options,
      EnvironmentReader environment = process_environment(),
      const Credentials& given = {}
  );

  /// Asks until there is an answer that another try would not change.
  ///
  /// Throws:  mh::StorageError where there is none
  [[nodiscard]] Reply ask(const Request& request);

  /// The same. Throws:  mh::StorageError for any answer but 2xx and those in `also`, too
  [[nodiscard]] Reply require(const Request& request, std::initializer_list<int> also = {});

  /// The error that an answer is, in a sentence.
  [[nodiscard]] mh::StorageError error(const Request& request, const Reply& reply);

  [[nodiscard]] const Options& options() const { return options_; }

private:
  struct Address {
    std::string host, path, url;
  };

  [[nodiscard]] HttpReply once(const Request& request, const Credentials& credentials);
  [[nodiscard]] Address address(const Request& request);
  [[nodiscard]] bool redirected(const Request& request, const Reply& reply);
  [[nodiscard]] std::string region_of(const std::string& bucket);

  Options options_;
  bool own_endpoint_ = false; ///< not AWS's, which depends on the region
  Http http_;
  CredentialsCache credentials_;
  std::mutex mutex_;
  std::map<std::string, std::string> regions_; ///< regions of buckets that are elsewhere
};

/// Runs 0 to `count` - 1 on at most `threads` threads. An exception of one ends the others after
/// their current call, and is rethrown.
void in_parallel(size_t count, size_t threads, const std::function<void(size_t)>& run);

} // namespace s3
