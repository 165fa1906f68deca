#include "storage.hpp"

#include <megahost/error.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <string_view>

namespace clouds {

namespace {

using mh::Path;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

[[noreturn]] void refuse(const Path& path, const std::string& reason, const std::string& hint) {
  throw mh::Error(path.string() + ": " + reason, hint, mh::exit_code::data);
}

/// The part behind "gs://", without slashes at its end.
std::string checked(const Path& path, const char* form) {
  const std::string& text = path.native();
  const size_t scheme = text.find("://");
  std::string rest = scheme == std::string::npos ? "" : text.substr(scheme + 3);
  while (rest.ends_with('/')) {
    rest.pop_back();
  }
  if (rest.empty() || rest.front() == '/') {
    refuse(path, "it names no bucket", form);
  }
  for (const Path& part : Path(rest)) {
    if (part == "." || part == "..") {
      refuse(path, "a name cannot have the part \"" + part.string() + "\"", form);
    }
  }
  return rest;
}

[[noreturn]] void refuse_writing(const std::string& action, const Path& path) {
  throw mh::StorageError(
      action,
      path,
      EROFS,
      "this storage is read only: the client has no conditional writes, and two runs would mix their "
      "checkpoints",
      "save on a disk or at s3://, and copy from there with the cloud's own tool"
  );
}

} // namespace

ObjectReader& ReadStorage::reader(const std::string& account) {
  const std::lock_guard lock(mutex_);
  auto& reader = open_[account];
  if (reader == nullptr) {
    reader = open(account);
  }
  return *reader;
}

std::unique_ptr<mh::Upload> ReadStorage::put(const Path& path, Existing /*existing*/) {
  refuse_writing("write", path);
}

std::unique_ptr<mh::ReadFile> ReadStorage::get(const Path& path) {
  const Place place = at(path);
  return reader(place.account).get(place.name, path);
}

bool ReadStorage::contains(const Path& path) {
  const Place place = at(path);
  return place.name.find('/') != std::string::npos &&
         reader(place.account).contains(place.name, path);
}

std::vector<mh::Storage::Item> ReadStorage::list(const Path& prefix) {
  const Place place = at(prefix);
  std::vector<Item> items;
  for (const std::string& name : reader(place.account).below(place.name, prefix)) {
    const size_t slash = name.find('/');
    Item item{name.substr(0, slash), slash != std::string::npos};
    if (!item.name.empty() && item.name != "." && item.name != "..") {
      items.push_back(std::move(item));
    }
  }
  std::ranges::sort(items, {}, [](const Item& item) {
    return std::pair(item.name, item.is_prefix);
  });
  items.erase(std::unique(items.begin(), items.end()), items.end());
  return items;
}

void ReadStorage::remove(const Path& path) {
  refuse_writing("remove", path);
}

void ReadStorage::remove_all(const Path& prefix) {
  refuse_writing("remove", prefix);
}

void ReadStorage::remove_unfinished(const Path& /*prefix*/) {}

void Google::fields(mh::Fields<Config>& f) {
  f.add(
      "endpoint",
      &Config::endpoint,
      "address of the store, https://HOST:PORT, if it is not Google's"
  );
  f.add("anonymous", &Config::anonymous, "requests carry no credentials: for what is public");
  f.add(
       "retry",
       &Config::retry,
       "how long a request that fails for a reason that may pass is tried again"
  )
      .range(1, 3600)
      .unit("seconds");
}

ReadStorage::Place Google::at(const Path& path) const {
  return {"", checked(path, "gs://BUCKET/PATH")};
}

std::unique_ptr<ObjectReader> Google::open(const std::string& /*account*/) const {
  return read_google(config_);
}

void Azure::fields(mh::Fields<Config>& f) {
  f.add(
      "account",
      &Config::account,
      "storage account of paths that name none; unless given AZURE_STORAGE_ACCOUNT"
  );
  f.add(
      "endpoint",
      &Config::endpoint,
      "address of a store like it, https://HOST:PORT, such as Azurite"
  );
  f.add("anonymous", &Config::anonymous, "requests carry no credentials: for what is public");
}

ReadStorage::Place Azure::at(const Path& path) const {
  constexpr const char* kForm = "CONTAINER@ACCOUNT.dfs.core.windows.net/PATH, or CONTAINER/PATH";
  const std::string rest = checked(path, kForm);
  const size_t slash = std::min(rest.find('/'), rest.size());
  const std::string host = rest.substr(0, slash);
  const size_t sign = host.find('@');
  Place place{config_.account, rest};
  if (sign != std::string::npos) {
    const std::string service = host.substr(sign + 1);
    const size_t dot = std::min(service.find('.'), service.size());
    const std::string ending = service.substr(dot);
    if (ending != ".dfs.core.windows.net" && ending != ".blob.core.windows.net") {
      refuse(path, "its account is not one of Azure's", kForm);
    }
    place = {service.substr(0, dot), host.substr(0, sign) + rest.substr(slash)};
  }
  place.account = place.account.empty() ? variable("AZURE_STORAGE_ACCOUNT") : place.account;
  const bool is_account = !place.account.empty() && std::ranges::all_of(place.account, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
  });
  if (!is_account) {
    refuse(
        path,
        "no storage account is named",
        "AZURE_STORAGE_ACCOUNT or storage.account names it, or the path"
    );
  }
  return place;
}

std::unique_ptr<ObjectReader> Azure::open(const std::string& account) const {
  Config config = config_;
  config.account = account;
  AzureSecret secret = secret_;
  if (secret.key.empty() && secret.signature.empty()) {
    secret = {variable("AZURE_STORAGE_KEY"), variable("AZURE_STORAGE_SAS_TOKEN")};
  }
  return read_azure(config, secret);
}

} // namespace clouds
