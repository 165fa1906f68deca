#include "readers.hpp"

#include <megahost/error.hpp>

#include <arrow/buffer.h>
#include <arrow/filesystem/azurefs.h>
#include <arrow/filesystem/gcsfs.h>
#include <arrow/io/interfaces.h>
#include <arrow/util/future.h>
#include <arrow/util/io_util.h>
#include <arrow/util/key_value_metadata.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace clouds {

namespace {

namespace afs = arrow::fs;

constexpr uint64_t kRange = 8 << 20; // bytes of a concurrent request
constexpr size_t kLongest = 300;     // bytes of a client's own words

/// A client's words in one line, without the list of details at their end.
std::string words_of(const arrow::Status& status) {
  std::string text = status.message();
  text = text.substr(0, std::min({text.find(" error_info="), text.find("Request ID"), kLongest}));
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, ' '
  );
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

bool has(const arrow::Status& status, std::string_view word) {
  return status.message().find(word) != std::string::npos;
}

[[noreturn]] void
refuse(const std::string& action, const mh::Path& path, const arrow::Status& status) {
  const auto make = [&](int code, const std::string& reason, const std::string& hint = "") {
    return mh::StorageError(action, path, code, reason, hint);
  };
  if (arrow::internal::ErrnoFromStatus(status) == ENOENT) {
    throw make(ENOENT, "it is not there");
  }
  if (has(status, "UNAUTHENTICATED") || has(status, "PERMISSION_DENIED") ||
      has(status, "AuthenticationFailed") || has(status, "AuthorizationFailure") ||
      has(status, "invalid_grant")) {
    throw make(
        EACCES,
        "the credentials are refused",
        "Google's are those of `gcloud auth application-default login` or "
        "GOOGLE_APPLICATION_CREDENTIALS, Azure's AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN or its "
        "own chain; storage.anonymous reads what is public"
    );
  }
  throw make(
      EIO,
      words_of(status),
      "look at storage.endpoint and at the network; SSL_CERT_FILE names certificates that are trusted"
  );
}

template <class T>
T value_of(arrow::Result<T> result, const std::string& action, const mh::Path& path) {
  if (!result.ok()) {
    refuse(action, path, result.status());
  }
  return std::move(result).ValueUnsafe();
}

class ArrowObject final : public mh::ReadFile {
public:
  ArrowObject(std::shared_ptr<arrow::io::RandomAccessFile> file, mh::Path path)
      : file_(std::move(file))
      , path_(std::move(path))
      , size_(static_cast<uint64_t>(value_of(file_->GetSize(), "read", path_))) {}

  [[nodiscard]] uint64_t size() const override { return size_; }

  [[nodiscard]] size_t read(uint64_t offset, std::span<std::byte> into) override {
    const uint64_t left = size_ - std::min(offset, size_);
    const std::span<std::byte> wanted = into.first(std::min<uint64_t>(into.size(), left));
    std::vector<arrow::Future<std::shared_ptr<arrow::Buffer>>> parts;
    for (uint64_t at = 0; at < wanted.size(); at += kRange) {
      const auto size = static_cast<int64_t>(std::min(kRange, wanted.size() - at));
      parts.push_back(
          file_->ReadAsync(arrow::io::default_io_context(), static_cast<int64_t>(offset + at), size)
      );
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto part =
          wanted.subspan(i * kRange).first(std::min(kRange, wanted.size() - i * kRange));
      const auto bytes = value_of(parts[i].result(), "read", path_);
      if (static_cast<uint64_t>(bytes->size()) != part.size()) {
        throw mh::StorageError("read", path_, EIO, "the answer is cut short", "");
      }
      std::memcpy(part.data(), bytes->data(), part.size());
    }
    return wanted.size();
  }

  [[nodiscard]] std::string version() const override {
    const auto about = file_->ReadMetadata();
    if (about.ok() && *about != nullptr) {
      for (const char* name : {"generation", "ETag"}) {
        if (const auto found = (*about)->Get(name); found.ok()) {
          return *found;
        }
      }
    }
    return "";
  }

private:
  std::shared_ptr<arrow::io::RandomAccessFile> file_;
  mh::Path path_;
  uint64_t size_;
};

class ArrowReader final : public ObjectReader {
public:
  explicit ArrowReader(std::shared_ptr<afs::FileSystem> files)
      : files_(std::move(files)) {}

  std::unique_ptr<mh::ReadFile> get(const std::string& name, const mh::Path& path) override {
    return std::make_unique<ArrowObject>(value_of(files_->OpenInputFile(name), "read", path), path);
  }

  bool contains(const std::string& name, const mh::Path& path) override {
    return value_of(files_->GetFileInfo(name), "examine", path).type() == afs::FileType::File;
  }

  // All of them: Arrow's list of one level has only those folders of Google's that Arrow has made.
  std::vector<std::string> below(const std::string& name, const mh::Path& path) override {
    afs::FileSelector all;
    all.base_dir = name;
    all.allow_not_found = true;
    all.recursive = true;
    std::vector<std::string> names;
    for (const afs::FileInfo& info : value_of(files_->GetFileInfo(all), "list", path)) {
      if (info.type() == afs::FileType::File && info.path().starts_with(name + "/")) {
        names.push_back(info.path().substr(name.size() + 1));
      }
    }
    return names;
  }

private:
  std::shared_ptr<afs::FileSystem> files_;
};

struct StoreAddress {
  std::string scheme, host;
};

/// "https://store:443" in two.
StoreAddress address_of(const std::string& endpoint) {
  const size_t at = endpoint.find("://");
  const std::string scheme = endpoint.substr(0, std::min(at, endpoint.size()));
  const bool is_address = at != std::string::npos && (scheme == "http" || scheme == "https") &&
                          endpoint.find_first_of("@?# /", at + 3) == std::string::npos;
  if (!is_address) {
    throw mh::Error("storage.endpoint is no address of a store", "https://HOST:PORT");
  }
  return {scheme, endpoint.substr(at + 3)};
}

void require(const arrow::Status& status) {
  if (!status.ok()) {
    throw mh::Error("the store's client cannot be opened: " + words_of(status));
  }
}

} // namespace

ObjectReader::~ObjectReader() = default;

std::unique_ptr<ObjectReader> read_google(const GoogleOptions& options) {
  afs::GcsOptions given =
      options.anonymous ? afs::GcsOptions::Anonymous() : afs::GcsOptions::Defaults();
  if (!options.endpoint.empty()) {
    const StoreAddress address = address_of(options.endpoint);
    given.scheme = address.scheme;
    given.endpoint_override = address.host;
  }
  given.retry_limit_seconds = static_cast<double>(options.retry);
  auto made = afs::GcsFileSystem::Make(given);
  require(made.status());
  return std::make_unique<ArrowReader>(*made);
}

std::unique_ptr<ObjectReader> read_azure(const AzureOptions& options, const AzureSecret& secret) {
  afs::AzureOptions given;
  given.account_name = options.account;
  if (!options.endpoint.empty()) {
    const StoreAddress address = address_of(options.endpoint);
    given.blob_storage_scheme = given.dfs_storage_scheme = address.scheme;
    given.blob_storage_authority = given.dfs_storage_authority = address.host;
  }
  require(
      options.anonymous           ? given.ConfigureAnonymousCredential()
      : !secret.key.empty()       ? given.ConfigureAccountKeyCredential(secret.key)
      : !secret.signature.empty() ? given.ConfigureSASCredential(secret.signature)
                                  : given.ConfigureDefaultCredential()
  );
  auto made = afs::AzureFileSystem::Make(given);
  require(made.status());
  return std::make_unique<ArrowReader>(*made);
}

} // namespace clouds
