// Signatures as AWS publishes them, and the small readers next to them.

#include "megahost/error.hpp"
#include "plugins/storage/s3/client.hpp"
#include "plugins/storage/s3/xml.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace {

using namespace s3;

constexpr std::time_t kMay2013 = 1369353600;    // 2013-05-24T00:00:00Z
constexpr std::time_t kAugust2015 = 1440938160; // 2015-08-30T12:36:00Z
const std::string kEmptyHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

std::string signature(const Headers& headers) {
  const std::string& text = headers.at("authorization");
  return text.substr(text.find("Signature=") + 10);
}

/// Source:  Amazon S3 API Reference, "Authenticating Requests: Using the Authorization Header"
std::string example_of_s3(
    const std::string& method,
    const std::string& path,
    const std::string& query,
    const std::string& payload,
    Headers headers
) {
  headers["host"] = "examplebucket.s3.amazonaws.com";
  headers["x-amz-content-sha256"] = payload;
  const Credentials credentials{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"};
  sign(credentials, {"us-east-1", "s3", kMay2013}, method, path, query, payload, headers);
  return signature(headers);
}

/// Source:  AWS General Reference, "Signature Version 4 test suite"
std::string example_of_suite(
    const std::string& method, const std::string& query, const std::string& body, Headers headers
) {
  headers["host"] = "example.amazonaws.com";
  const Credentials credentials{"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"};
  sign(
      credentials, {"us-east-1", "service", kAugust2015}, method, "/", query, sha256(body), headers
  );
  return signature(headers);
}

EnvironmentReader variables(const std::map<std::string, std::string>& set) {
  return [set](const std::string& name) {
    const auto found = set.find(name);
    return found == set.end() ? std::string() : found->second;
  };
}

} // namespace

TEST_CASE("signatures are those that S3's manual prints") {
  CHECK(
      example_of_s3("GET", "/test.txt", "", kEmptyHash, {{"range", "bytes=0-9"}}) ==
      "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
  );
  CHECK(
      example_of_s3(
          "PUT",
          "/" + percent_encoded("test$file.text"),
          "",
          sha256("Welcome to Amazon S3."),
          {{"date", "Fri, 24 May 2013 00:00:00 GMT"}, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}}
      ) == "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"
  );
  CHECK(
      example_of_s3("GET", "/", query_text({{"lifecycle", ""}}), kEmptyHash, {}) ==
      "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
  );
  CHECK(
      example_of_s3("GET", "/", query_text({{"prefix", "J"}, {"max-keys", "2"}}), kEmptyHash, {}) ==
      "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
  );
}

TEST_CASE("signatures are those of AWS's test suite") {
  CHECK(
      example_of_suite("GET", "", "", {}) ==
      "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"
  );
  CHECK(
      example_of_suite("GET", query_text({{"Param2", "value2"}, {"Param1", "value1"}}), "", {}) ==
      "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"
  );
  CHECK(
      example_of_suite(
          "POST", "", "Param1=value1", {{"content-type", "application/x-www-form-urlencoded"}}
      ) == "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a"
  );
}

TEST_CASE("texts are encoded as signatures want them") {
  CHECK(percent_encoded("a b+ä/~") == "a%20b%2B%C3%A4%2F~");
  CHECK(percent_encoded("a/b", /*keep_slashes=*/true) == "a/b");
  CHECK(percent_decoded("a%20b%2B+c%C3%A4%") == "a b+ cä%");
  CHECK(base64("\x01\xff\x80") == "Af+A");
  CHECK(sha1("session") == "fcbdc4c271c889825d8338d2d8f10b6e5e95c171");
}

TEST_CASE("the XML of stores is read by element") {
  const std::string xml = "<?xml version=\"1.0\"?><L xmlns=\"x\"><C><Key>a&amp;b&#x9;</Key></C>"
                          "<C><Key/></C><Count>2</Count><KeyCount>7</KeyCount></L>";
  CHECK(elements(xml, "C").size() == 2);
  CHECK(unescaped(first_element(elements(xml, "C")[0], "Key")) == "a&b\t");
  CHECK(first_element(xml, "KeyCount") == "7");
  CHECK(first_element(xml, "L").starts_with("<C>"));
  CHECK(elements(xml, "Key") == std::vector<std::string>{"a&amp;b&#x9;", ""});
  CHECK(first_element("<a><b>", "b").empty());
  CHECK(unescaped(escaped("<\"&'>")) == "<\"&'>");
  CHECK(host_of("https://host:9000/path") == "host:9000");
}

TEST_CASE("a path is a bucket and a key, and nothing else") {
  CHECK(place_of("s3://bucket/a/b").key == "a/b");
  CHECK(place_of("s3://bucket").key.empty());
  for (const std::string path :
       {"bucket/a",
        "s3:/bucket/a",
        "s3://",
        "s3://b",
        "s3://evil.com:80/a",
        "s3://a@b/c",
        "s3://bucket/../a",
        "s3://bucket/a/./b",
        "s3://bu%63ket/a"}) {
    CAPTURE(path);
    CHECK_THROWS_AS((void)place_of(path), mh::Error);
  }
  CHECK_THROWS_AS((void)place_of("s3://bucket/" + std::string(1025, 'k')), mh::Error);
}

TEST_CASE("files of the AWS tools are read as they read them") {
  const Sections sections = read_sections("# a comment\n"
                                          "[default]\n"
                                          "region = eu-west-1 ; the nearest\n"
                                          "s3 =\n"
                                          "  addressing_style = path\n"
                                          "output=json\n"
                                          "[ profile big one ]\r\n"
                                          "aws_secret_access_key = a=b#c\r\n"
                                          "no setting\n");
  CHECK(sections.at("default").at("region") == "eu-west-1");
  CHECK(sections.at("default").at("s3.addressing_style") == "path");
  CHECK(sections.at("default").at("output") == "json");
  CHECK(sections.at("profile big one").at("aws_secret_access_key") == "a=b#c");
}

TEST_CASE("credentials are looked for in order, and those that are set up badly are said") {
  std::string folder = std::filesystem::temp_directory_path() / "s3-XXXXXX";
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  std::filesystem::create_directory(folder + "/.aws");
  std::ofstream(folder + "/.aws/credentials") << "[default]\naws_access_key_id = F\n"
                                                 "aws_secret_access_key = FS\n";
  std::ofstream(folder + "/.aws/config")
      << "[profile runs]\ncredential_process = echo "
         "'{\"Version\": 1, \"AccessKeyId\": \"P\", \"SecretAccessKey\": \"PS\", "
         "\"Expiration\": \"2030-01-01T00:00:00Z\"}'\n"
         "[profile broken]\ncredential_process = echo secret-words\n"
         "[profile loop]\nrole_arn = r\nsource_profile = loop2\n"
         "[profile loop2]\nrole_arn = r\nsource_profile = loop\n"
         "[profile login]\nsso_session = s\nsso_account_id = 1\nsso_role_name = r\n"
         "[sso-session s]\nsso_region = us-east-1\n";
  Http http("", 5);
  const auto find = [&](std::map<std::string, std::string> set, const std::string& profile = "") {
    set["HOME"] = folder;
    set["AWS_EC2_METADATA_DISABLED"] = "true";
    return find_credentials({variables(set), profile, "us-east-1"}, http);
  };
  const auto sentence = [&](const std::string& profile) {
    try {
      (void)find({}, profile);
    } catch (const mh::Error& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  CHECK(find({{"AWS_ACCESS_KEY_ID", "E"}, {"AWS_PROFILE", "runs"}}).key == "E");
  CHECK(find({{"AWS_ACCESS_KEY_ID", "E"}}, "runs").key == "P");
  CHECK(find({{"AWS_PROFILE", "runs"}}).until == 1893456000);
  CHECK(find({}).source == "the profile default");
  CHECK(
      sentence("broken") == "credentials of the credential_process of profile broken: the answer "
                            "holds no AccessKeyId and SecretAccessKey"
  );
  CHECK(sentence("loop").find("its roles are assumed by one another") != std::string::npos);
  CHECK(
      sentence("login") == "credentials of the profile login: there is no token of single sign-on"
  );
  CHECK(
      sentence("nobody") == "credentials of the profile nobody: neither file has such a profile "
                            "with credentials"
  );
  std::filesystem::remove_all(folder);
}
