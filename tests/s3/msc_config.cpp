// Configurations of Multi-Storage Client: the profiles that are followed, and what is refused by its
// name, without a value of the file.

#include "plugins/storage/msc/config.hpp"
#include "plugins/storage/msc/storage.hpp"
#include "tests/formats/refusal.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

namespace msc_tests {

using namespace mh::test;

namespace {

constexpr const char* kSecret = "canarySecretCanary0003";
using Variables = std::map<std::string, std::string>;

s3::EnvironmentReader reads(const Variables& variables) {
  return [variables](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? "" : found->second;
  };
}

msc::MscProfile read(const std::string& text, const Variables& variables = {}) {
  return msc::read_profile(text, "msc.yaml", "a", reads(variables));
}

std::string refused(const std::string& text) {
  return refusal([&] { (void)read(text); });
}

/// A profile of S3 with these options.
std::string with(const std::string& options, const std::string& more = "") {
  return "profiles:\n  a:\n    storage_provider: {type: s3, options: {base_path: b" +
         (options.empty() ? "" : ", " + options) + "}}\n" + more;
}

/// A folder that is gone with the test.
struct Folder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("megahost-msc-" + std::to_string(getpid()));

  Folder() { std::filesystem::create_directories(path / "in"); }

  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  ~Folder() { std::filesystem::remove_all(path); }

  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path / name).parent_path());
    std::ofstream(path / name) << text;
  }
};

} // namespace

TEST_CASE("a profile of S3") {
  const msc::MscProfile profile = read(
      R"(
profiles:
  a:
    comment: ours
    storage_provider:
      type: s8k
      options:
        base_path: /bucket/${PART}/
        endpoint_url: "https://store:9000"
        region_name: eu
        verify: /etc/ca.pem
        multipart_chunksize: 33554432
        max_concurrency: 16
        s3: {addressing_style: virtual}
    credentials_provider:
      type: S3Credentials
      options: {access_key: $KEY, secret_key: "${SECRET}x", session_token: t}
    retry: {attempts: 3, delay: 1.0}
  other: {provider_bundle: {type: of.python}}
cache: {size: 10G}
path_mapping: {"s3://bucket/": "msc://a/"}
)",
      {{"PART", "corpora"}, {"KEY", "key"}, {"SECRET", kSecret}}
  );
  CHECK(profile.provider == msc::Provider::s3);
  CHECK(profile.base_path == "bucket/corpora");
  CHECK(profile.options.endpoint == "https://store:9000");
  CHECK(profile.options.region == "eu");
  CHECK(profile.options.ca_file == "/etc/ca.pem");
  CHECK(profile.options.part_size == 32);
  CHECK(profile.options.connections == 16);
  CHECK(profile.options.addressing == "host");
  CHECK(profile.options.tries == 3);
  CHECK(profile.credentials.key == "key");
  CHECK(profile.credentials.secret == std::string(kSecret) + "x");
  CHECK(profile.credentials.token == "t");
  CHECK(profile.credentials.source == "the profile a of msc.yaml");
}

TEST_CASE("JSON, and what is there unless it is given") {
  const msc::MscProfile profile = read(
      R"({"profiles": {"a": {"storage_provider": {"type": "gcs_s3", "options": {"base_path": "b", "signature_version": "UNSIGNED"}}}}})"
  );
  CHECK(profile.options.endpoint == "https://storage.googleapis.com");
  CHECK(profile.options.anonymous);
  CHECK(profile.options.part_size == s3::Options().part_size);
  CHECK_FALSE(profile.credentials.sign());
}

TEST_CASE("profiles of Google's and of Azure's store") {
  const msc::MscProfile google = read(
      "profiles: {a: {storage_provider: {type: gcs, options: {base_path: b/c, project_id: p}}}}"
  );
  CHECK(google.provider == msc::Provider::google);
  CHECK(google.base_path == "b/c");
  const std::string begin =
      "profiles: {a: {storage_provider: {type: azure, options: {base_path: b, ";
  const msc::MscProfile azure = read(
      begin + "endpoint_url: 'https://ours.blob.core.windows.net'}}, credentials_provider: {type: "
              "AzureCredentials, options: {connection: 'AccountName=ours;AccountKey=a2V5==;X=y'}}}}"
  );
  CHECK(azure.provider == msc::Provider::azure);
  CHECK(azure.azure.account == "ours");
  CHECK(azure.azure.endpoint == "");
  CHECK(azure.secret.key == "a2V5==");
  const msc::MscProfile like = read(begin + "endpoint_url: 'http://host:10000/ours/'}}}}");
  CHECK(like.azure.account == "ours");
  CHECK(like.azure.endpoint == "http://host:10000");
  CHECK(refused(begin + "}}}}").find("endpoint_url is missing") != std::string::npos);
  CHECK(
      refused(begin + "endpoint_url: 'http://host'}}}}").find("no storage account") !=
      std::string::npos
  );
}

TEST_CASE("what is not followed is refused by its name, and no value is shown") {
  const std::vector<std::pair<std::string, std::string>> refusals{
      {"a: [", "msc.yaml, line 1: "},
      {"[1]", "msc.yaml:  is no map of keys"},
      {"include: [x]\nprofiles: {}", "include is no key that megahost follows"},
      {"profiles: {b: {}}", "there is no profile a"},
      {with("", "    metadata_provider: {type: manifest}"),
       "profiles.a.metadata_provider is no key"},
      {with("", "    replicas: []"), "profiles.a.replicas is no key"},
      {with("", "    storage_provider: {}"), "profiles.a.storage_provider stands there twice"},
      {"profiles: {a: {provider_bundle: {type: x.Y}}}", "profiles.a.provider_bundle is no key"},
      {"profiles: {a: {storage_provider: {type: my.module.Provider, options: {}}}}",
       "profiles.a.storage_provider.type is no kind of store that megahost reads"},
      {"profiles: {a: {storage_provider: {type: oci, options: {}}}}", "type is no kind of store"},
      {"profiles: {a: {storage_provider: {type: file, options: {base_path: x}}}}",
       "options.base_path is no folder from the root on"},
      {"profiles: {a: {storage_provider: {type: file, options: {base_path: /x, y: z}}}}",
       "options.y is no key"},
      {"profiles: {a: {storage_provider: {type: s3}}}", "storage_provider.options is missing"},
      {with("verify: false"), "options.verify is false"},
      {with("signature_version: s3"), "options.signature_version is neither s3v4 nor UNSIGNED"},
      {with("s3: {addressing_style: x}"), "addressing_style is neither"},
      {with("s3: {payload_signing_enabled: true}"), "s3.payload_signing_enabled is no key"},
      {with("multipart_chunksize: 1"), "options.multipart_chunksize is no whole number"},
      {with("region_name: [a]"), "options.region_name is no plain text"},
      {with("region_name: !!python/name:os.system a"), "options.region_name is no plain text"},
      {with("region_name: '${NOT_SET}'"), "needs the variable NOT_SET of the environment"},
      {with(std::string("endpoint_url: 'http://me:") + kSecret + "@host'"),
       "options.endpoint_url is no address of a store"},
      {with(std::string("password: ") + kSecret), "options.password is no key"},
      {with(
           "",
           std::string("    credentials_provider: {type: AzureCredentials, options: {connection: "
           ) + kSecret +
               "}}"
       ),
       "credentials_provider.type is not S3Credentials"},
      {std::string(
           "profiles: {a: {storage_provider: {type: azure, options: {base_path: b, endpoint_url: 'https://x.blob.core.windows.net'}}, "
       ) + "credentials_provider: {type: AzureCredentials, options: {connection: 'Key=" +
           kSecret + "'}}}}",
       "options.connection has neither an AccountKey"},
      {"profiles: {a: {storage_provider: {type: gcs, options: {base_path: b}}, credentials_provider: {type: x}}}",
       "credentials_provider is not followed for Google's store"},
      {with(
           "",
           std::string("    credentials_provider: {type: S3Credentials, options: {secret_key: ") +
               kSecret + "}}"
       ),
       "options.access_key is missing"}};
  for (const auto& [text, sentence] : refusals) {
    CAPTURE(text);
    const std::string said = refused(text);
    CHECK_MESSAGE(said.find(sentence) != std::string::npos, said);
    CHECK(said.find(kSecret) == std::string::npos);
  }
}

TEST_CASE("the file that counts") {
  const Folder folder;
  const std::string home = folder.path / "home", xdg = folder.path / "xdg";
  const Variables variables{
      {"HOME", home}, {"XDG_CONFIG_HOME", xdg}, {"XDG_CONFIG_DIRS", "/nonexistent:" + xdg + "2"}};
  const auto found = [&](const std::string& named = "") {
    return msc::find_config(named, reads(variables));
  };
  CHECK(refusal([&] {
          (void)found();
        }).find("there is no configuration of it") != std::string::npos);
  for (const char* name :
       {"xdg2/msc/config.json",
        "home/.config/msc/config.yaml",
        "home/.msc_config.json",
        "home/.msc_config.yaml",
        "xdg/msc/config.yaml"}) {
    folder.write(name, "");
    CHECK(found() == folder.path / name);
  }
  CHECK(found("named.yaml") == "named.yaml");
  CHECK(msc::find_config("", reads({{"MSC_CONFIG", "x"}})) == "x");
}

TEST_CASE("a profile of a disk reaches its folder and no further") {
  const Folder folder;
  folder.write(
      "msc.yaml",
      "profiles: {disk: {storage_provider: {type: file, options: {base_path: '" +
          (folder.path / "in").string() + "/'}}}}"
  );
  folder.write("outside", "secret");
  msc::Msc storage({folder.path / "msc.yaml"}, {}, reads({}));
  mh::put_text(storage, "msc://disk/x/y", "text");
  CHECK(std::filesystem::is_regular_file(folder.path / "in/x/y"));
  CHECK(mh::get_text(storage, "msc://disk/x/y", 100) == "text");
  CHECK((storage.list("msc://disk") == std::vector<mh::Storage::Item>{{"x", true}}));
  CHECK(refusal([&] {
          mh::put_text(storage, "msc://disk/x/y", "", mh::Storage::Existing::refuse);
        }) != "");
  for (const char* path :
       {"msc://disk/../outside",
        "msc://disk/x/../../outside",
        "msc://disk/.",
        "msc:///x",
        "msc://",
        "msc://../outside",
        "disk/x"}) {
    CAPTURE(path);
    CHECK(refusal([&] { (void)storage.get(path); }) != "");
    CHECK(refusal([&] { storage.remove_all(path); }) != "");
  }
  storage.remove_all("msc://disk/x");
  CHECK_FALSE(storage.contains("msc://disk/x/y"));
  CHECK(std::filesystem::exists(folder.path / "outside"));
}

} // namespace msc_tests
