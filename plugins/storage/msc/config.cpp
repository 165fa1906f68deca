#include "config.hpp"

#include <megahost/error.hpp>

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace msc {

namespace {

using mh::Error;
using s3::EnvironmentReader;

enum class Treatment : uint8_t {
  read,
  passed, ///< changes speed or what the client itself reports, and no byte of an object
};

struct KnownKey {
  std::string_view name;
  Treatment treatment = Treatment::read;
};

constexpr auto kPassed = Treatment::passed;
// path_mapping gives other paths a place in a profile, and those of this storage have one.
constexpr KnownKey kTopKeys[]{
    {"profiles"},
    {"cache", kPassed},
    {"opentelemetry", kPassed},
    {"posix", kPassed},
    {"path_mapping", kPassed},
    {"experimental_features", kPassed}};
constexpr KnownKey kProfileKeys[]{
    {"storage_provider"},
    {"credentials_provider"},
    {"retry"},
    {"caching_enabled", kPassed},
    {"comment", kPassed}};
constexpr KnownKey kRetryKeys[]{{"attempts"}, {"delay", kPassed}, {"backoff_multiplier", kPassed}};
constexpr KnownKey kProviderKeys[]{{"type"}, {"options"}};
constexpr KnownKey kFileKeys[]{{"base_path"}};
constexpr KnownKey kCloudKeys[]{
    {"base_path"},
    {"endpoint_url"},
    {"project_id", kPassed},
    {"multipart_threshold", kPassed},
    {"multipart_chunksize", kPassed},
    {"max_concurrency", kPassed},
    {"io_chunksize", kPassed},
    {"rust_client", kPassed}};
constexpr KnownKey kConnectionKeys[]{{"connection"}};
constexpr KnownKey kS3Keys[]{
    {"base_path"},
    {"endpoint_url"},
    {"region_name"},
    {"profile_name"},
    {"verify"},
    {"signature_version"},
    {"s3"},
    {"multipart_chunksize"},
    {"max_concurrency"},
    {"multipart_threshold", kPassed},
    {"io_chunksize", kPassed},
    {"checksum_algorithm", kPassed},
    {"request_checksum_calculation", kPassed},
    {"response_checksum_validation", kPassed},
    {"max_pool_connections", kPassed},
    {"connect_timeout", kPassed},
    {"read_timeout", kPassed},
    {"retries", kPassed},
    {"infer_content_type", kPassed},
    {"rust_client", kPassed}};
constexpr KnownKey kAddressingKeys[]{{"addressing_style"}};
constexpr KnownKey kS3CredentialKeys[]{{"access_key"}, {"secret_key"}, {"session_token"}};

/// A map of the file, and its name there.
class YamlSection {
public:
  YamlSection(YAML::Node node, std::string file, std::string name, EnvironmentReader environment)
      : node_(std::move(node))
      , file_(std::move(file))
      , name_(std::move(name))
      , environment_(std::move(environment)) {}

  [[noreturn]] void
  refuse(const std::string& key, const std::string& reason, const std::string& hint = "") const {
    throw Error(file_ + ": " + named(key) + " " + reason, hint, mh::exit_code::data);
  }

  /// Refuses what is no map of these keys, each once.
  const YamlSection& require(std::span<const KnownKey> known) const {
    for (const std::string& key : keys()) {
      if (std::ranges::find(known, key, &KnownKey::name) == known.end()) {
        std::string names;
        for (const KnownKey& one : known) {
          names += (names.empty() ? "" : ", ") + std::string(one.name);
        }
        refuse(key, "is no key that megahost follows", "there are " + names);
      }
    }
    return *this;
  }

  [[nodiscard]] std::vector<std::string> keys() const {
    if (!node_.IsMap()) {
      refuse("", "is no map of keys");
    }
    std::vector<std::string> keys;
    for (const auto& entry : node_) {
      const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
      if (key.empty() || std::ranges::find(keys, key) != keys.end()) {
        refuse(key, key.empty() ? "has a key that is no word" : "stands there twice");
      }
      keys.push_back(key);
    }
    return keys;
  }

  [[nodiscard]] bool has(const std::string& key) const {
    const YAML::Node found = node_[key];
    return found.IsDefined() && !found.IsNull();
  }

  [[nodiscard]] YamlSection section(const std::string& key) const {
    if (!has(key)) {
      refuse(key, "is missing");
    }
    return {node_[key], file_, named(key), environment_};
  }

  /// The same; where it is not there, an empty one.
  [[nodiscard]] YamlSection section_or_none(const std::string& key) const {
    return has(key) ? section(key)
                    : YamlSection(YAML::Node(YAML::NodeType::Map), file_, named(key), environment_);
  }

  /// A word or a number, with the environment's variables in it; empty where it is not there.
  [[nodiscard]] std::string text(const std::string& key) const {
    if (!has(key)) {
      return "";
    }
    const YAML::Node found = node_[key];
    const std::string& tag = found.Tag();
    if (!found.IsScalar() || !(tag.empty() || tag == "?" || tag == "!")) {
      refuse(key, "is no plain text or number");
    }
    return expanded(key, found.Scalar());
  }

  /// Nothing where it is not there.
  [[nodiscard]] std::optional<int64_t>
  number(const std::string& key, int64_t least, int64_t most) const {
    const std::string given = text(key);
    int64_t value = 0;
    const char* end = given.data() + given.size();
    const auto read = std::from_chars(given.data(), end, value);
    if (given.empty()) {
      return std::nullopt;
    }
    if (read.ec != std::errc() || read.ptr != end || value < least || value > most) {
      refuse(
          key, "is no whole number from " + std::to_string(least) + " to " + std::to_string(most)
      );
    }
    return value;
  }

private:
  [[nodiscard]] std::string named(const std::string& key) const {
    return name_ + (name_.empty() || key.empty() ? "" : ".") + key;
  }

  /// ${NAME} and $NAME are variables, which must be set.
  [[nodiscard]] std::string expanded(const std::string& key, const std::string& text) const {
    const auto is_letter = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
    std::string result;
    for (size_t i = 0; i < text.size();) {
      const bool braces = text.compare(i, 2, "${") == 0;
      const size_t begin = i + (braces ? 2 : 1);
      size_t end = begin;
      while (end < text.size() && is_letter(static_cast<unsigned char>(text[end]))) {
        ++end;
      }
      if (text[i] != '$' || end == begin || (braces && text.compare(end, 1, "}") != 0)) {
        result += text[i++];
        continue;
      }
      const std::string name = text.substr(begin, end - begin), value = environment_(name);
      if (value.empty()) {
        refuse(key, "needs the variable " + name + " of the environment, which is not set");
      }
      result += value;
      i = end + (braces ? 1 : 0);
    }
    return result;
  }

  YAML::Node node_;
  std::string file_, name_;
  EnvironmentReader environment_;
};

/// The endpoint. An address with a password in it is refused, for messages show addresses.
std::string address_of(const YamlSection& options) {
  std::string address = options.text("endpoint_url");
  const bool is_address = address.starts_with("http://") || address.starts_with("https://");
  if (!address.empty() && (!is_address || address.find_first_of("@?# ") != std::string::npos)) {
    options.refuse(
        "endpoint_url",
        "is no address of a store",
        "https://HOST:PORT; credentials have no place in it"
    );
  }
  return address;
}

s3::Options s3_options(const YamlSection& options, const YamlSection& retry) {
  constexpr int64_t kMiB = 1 << 20;
  s3::Options read;
  read.endpoint = address_of(options.require(kS3Keys));
  read.region = options.text("region_name");
  read.profile = options.text("profile_name");
  const std::string verify = options.text("verify");
  if (verify == "false" || verify == "False") {
    options.refuse(
        "verify",
        "is false: a store that nobody vouches for would get the data",
        "name the file of its certificate there"
    );
  }
  read.ca_file = verify == "true" || verify == "True" ? "" : verify;
  const std::string signature = options.text("signature_version");
  if (!signature.empty() && signature != "s3v4" && signature != "UNSIGNED") {
    options.refuse("signature_version", "is neither s3v4 nor UNSIGNED");
  }
  read.anonymous = signature == "UNSIGNED";
  const std::string style =
      options.section_or_none("s3").require(kAddressingKeys).text("addressing_style");
  if (!style.empty() && style != "auto" && style != "path" && style != "virtual") {
    options.refuse("s3.addressing_style", "is neither auto, path nor virtual");
  }
  read.addressing = style == "virtual" ? "host" : style.empty() ? "auto" : style;
  if (const auto bytes = options.number("multipart_chunksize", 5 * kMiB, 5000 * kMiB)) {
    read.part_size = *bytes / kMiB;
  }
  if (const auto connections = options.number("max_concurrency", 1, 1 << 20)) {
    read.connections = std::min<int64_t>(*connections, 64);
  }
  if (const auto attempts = retry.number("attempts", 1, 1 << 20)) {
    read.tries = std::min<int64_t>(*attempts, 20);
  }
  return read;
}

s3::Credentials
s3_credentials(const YamlSection& profile, const std::string& name, const std::string& file) {
  if (!profile.has("credentials_provider")) {
    return {};
  }
  const YamlSection provider = profile.section("credentials_provider").require(kProviderKeys);
  if (provider.text("type") != "S3Credentials") {
    provider.refuse(
        "type",
        "is not S3Credentials: other kinds run Python, or are of other stores",
        "without a credentials_provider those of s3:// count: the environment, ~/.aws, the machine"
    );
  }
  const YamlSection options = provider.section("options").require(kS3CredentialKeys);
  s3::Credentials read;
  read.key = options.text("access_key");
  read.secret = options.text("secret_key");
  read.token = options.text("session_token");
  read.source = "the profile " + name + " of " + file;
  for (const char* key : {"access_key", "secret_key"}) {
    if (options.text(key).empty()) {
      options.refuse(key, "is missing");
    }
  }
  return read;
}

/// Where no credentials are given, Google's application default ones count.
void read_google(const YamlSection& profile, const YamlSection& options, MscProfile& ret_read) {
  if (profile.has("credentials_provider")) {
    profile.refuse(
        "credentials_provider",
        "is not followed for Google's store",
        "GOOGLE_APPLICATION_CREDENTIALS names a file with credentials"
    );
  }
  ret_read.google.endpoint = address_of(options);
}

/// "https://ACCOUNT.blob.core.windows.net", or "http://HOST:PORT/ACCOUNT" of a store like it.
void read_azure_account(const YamlSection& options, clouds::AzureOptions& ret_read) {
  const std::string address = address_of(options);
  const size_t host = std::min(address.find("://"), address.size() - 3) + 3;
  const size_t own = address.find(".blob.core.windows.net");
  const size_t slash = address.find('/', host);
  if (own != std::string::npos) {
    ret_read.account = address.substr(host, own - host);
  } else if (slash != std::string::npos) {
    ret_read.endpoint = address.substr(0, slash);
    ret_read.account = address.substr(slash + 1);
    ret_read.account.erase(ret_read.account.find_last_not_of('/') + 1);
  } else {
    options.refuse(
        "endpoint_url", "names no storage account", "https://ACCOUNT.blob.core.windows.net"
    );
  }
}

/// The value of "NAME=value;" in a connection string; empty if it has none.
std::string connection_part(const std::string& connection, const std::string& name) {
  for (size_t at = 0; at < connection.size();) {
    const size_t end = std::min(connection.find(';', at), connection.size());
    if (connection.compare(at, name.size() + 1, name + "=") == 0) {
      return connection.substr(at + name.size() + 1, end - at - name.size() - 1);
    }
    at = end + 1;
  }
  return "";
}

void read_azure(const YamlSection& profile, const YamlSection& options, MscProfile& ret_read) {
  if (!options.has("endpoint_url")) {
    options.refuse("endpoint_url", "is missing", "https://ACCOUNT.blob.core.windows.net");
  }
  read_azure_account(options, ret_read.azure);
  if (!profile.has("credentials_provider")) {
    return;
  }
  const YamlSection provider = profile.section("credentials_provider").require(kProviderKeys);
  if (provider.text("type") == "DefaultAzureCredentials") {
    return;
  }
  if (provider.text("type") != "AzureCredentials") {
    provider.refuse("type", "is neither AzureCredentials nor DefaultAzureCredentials");
  }
  const YamlSection given = provider.section("options").require(kConnectionKeys);
  const std::string connection = given.text("connection");
  ret_read.secret.key = connection_part(connection, "AccountKey");
  ret_read.secret.signature = connection_part(connection, "SharedAccessSignature");
  if (ret_read.secret.key.empty() && ret_read.secret.signature.empty()) {
    given.refuse("connection", "has neither an AccountKey nor a SharedAccessSignature");
  }
}

struct KnownType {
  std::string_view name;
  Provider provider;
  const char* endpoint; ///< the endpoint, unless the file has one
};

constexpr KnownType kTypes[]{
    {"s3", Provider::s3, ""},
    {"s8k", Provider::s3, ""},
    {"gcs_s3", Provider::s3, "https://storage.googleapis.com"},
    {"ais_s3", Provider::s3, ""},
    {"gcs", Provider::google, ""},
    {"azure", Provider::azure, ""},
    {"file", Provider::file, ""}};

const KnownType& type_of(const YamlSection& provider) {
  const std::string type = provider.text("type");
  const auto* found = std::ranges::find(kTypes, type, &KnownType::name);
  if (found == std::end(kTypes)) {
    std::string names;
    for (const KnownType& one : kTypes) {
      names += (names.empty() ? "" : ", ") + std::string(one.name);
    }
    provider.refuse("type", "is no kind of store that megahost reads", "there are " + names);
  }
  return *found;
}

YAML::Node parsed(const std::string& text, const std::string& file) {
  try {
    return YAML::Load(text);
  } catch (const YAML::Exception& error) {
    throw Error(
        file + ", line " + std::to_string(error.mark.line + 1) + ": " + error.msg,
        "it is a configuration of Multi-Storage Client, as YAML or JSON",
        mh::exit_code::data
    );
  }
}

} // namespace

std::string find_config(const std::string& named, const EnvironmentReader& environment) {
  const auto is_there = [](const std::string& file) {
    std::error_code ignored;
    return std::filesystem::is_regular_file(file, ignored);
  };
  const std::string given = named.empty() ? environment("MSC_CONFIG") : named;
  if (!given.empty()) {
    return given;
  }
  std::vector<std::string> places;
  const auto add = [&](const std::string& folder, const std::string& name) {
    if (!folder.empty()) {
      places.push_back(folder + name);
    }
  };
  add(environment("XDG_CONFIG_HOME"), "/msc/config");
  add(environment("HOME"), "/.msc_config");
  add(environment("HOME"), "/.config/msc/config");
  std::string shared = environment("XDG_CONFIG_DIRS");
  shared = shared.empty() ? "/etc/xdg" : shared;
  for (size_t at = 0; at < shared.size();) {
    const size_t end = std::min(shared.find(':', at), shared.size());
    add(shared.substr(at, end - at), "/msc/config");
    at = end + 1;
  }
  add("/etc", "/msc_config");
  for (const std::string& place : places) {
    for (const char* ending : {".yaml", ".json"}) {
      if (is_there(place + ending)) {
        return place + ending;
      }
    }
  }
  throw Error(
      "msc:// names a profile of Multi-Storage Client, and there is no configuration of it",
      "name the file in MSC_CONFIG or storage.config; else it is " + places.front() + ".yaml",
      mh::exit_code::data
  );
}

MscProfile read_profile(
    const std::string& text,
    const std::string& file,
    const std::string& profile,
    const EnvironmentReader& environment
) {
  if (profile == "__filesystem__") { // the client's own name for the root of the disk
    return {.provider = Provider::file};
  }
  try {
    const YamlSection whole(parsed(text, file), file, "", environment);
    const YamlSection profiles = whole.require(kTopKeys).section("profiles");
    const std::vector<std::string> names = profiles.keys();
    if (std::ranges::find(names, profile) == names.end()) {
      std::string all;
      for (const std::string& name : names) {
        all += (all.empty() ? "" : ", ") + name;
      }
      throw Error(
          file + ": there is no profile " + profile, "there are " + all, mh::exit_code::data
      );
    }
    const YamlSection given = profiles.section(profile).require(kProfileKeys);
    const YamlSection provider = given.section("storage_provider").require(kProviderKeys);
    const KnownType& type = type_of(provider);
    const YamlSection options = provider.section("options");
    MscProfile read{.provider = type.provider, .base_path = options.text("base_path")};
    if (type.provider == Provider::file) {
      options.require(kFileKeys);
      if (!read.base_path.starts_with('/')) {
        options.refuse("base_path", "is no folder from the root on, /FOLDER");
      }
    } else {
      read.base_path.erase(0, read.base_path.find_first_not_of('/'));
    }
    const YamlSection retry = given.section_or_none("retry").require(kRetryKeys);
    if (type.provider == Provider::s3) {
      read.options = s3_options(options, retry);
      read.options.endpoint = read.options.endpoint.empty() ? type.endpoint : read.options.endpoint;
      read.credentials = s3_credentials(given, profile, file);
    } else if (type.provider == Provider::google) {
      read_google(given, options.require(kCloudKeys), read);
    } else if (type.provider == Provider::azure) {
      read_azure(given, options.require(kCloudKeys), read);
    }
    while (read.base_path.ends_with('/')) {
      read.base_path.pop_back();
    }
    return read;
  } catch (const YAML::Exception&) {
    throw Error(file + ": it cannot be read as YAML", "", mh::exit_code::data);
  }
}

} // namespace msc
