#include "credentials.hpp"

#include "xml.hpp"

#include <megahost/error.hpp>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>

namespace s3 {

namespace {

using mh::Error;
namespace exit_code = mh::exit_code;

constexpr int kRenewBefore = 300;      // seconds before credentials end
constexpr int kRenewTokenBefore = 900; // the same of a token of single sign-on
constexpr int kMostRoles = 5;          // one assumed by another
constexpr const char* kContainer = "http://169.254.170.2";
constexpr const char* kMachine = "http://169.254.169.254";

[[noreturn]] void fail(const std::string& source, const std::string& reason, std::string hint) {
  throw Error("credentials of " + source + ": " + reason, std::move(hint), exit_code::data);
}

/// "2030-01-01T00:00:00Z" as seconds; 0 if it is none.
std::time_t seconds_of(const std::string& time) {
  std::tm parts{};
  return strptime(time.c_str(), "%Y-%m-%dT%H:%M:%S", &parts) == nullptr ? 0 : timegm(&parts);
}

std::string iso_time(std::time_t seconds) {
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  std::array<char, 21> text{};
  (void)std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

/// Puts a file that its user alone can read in the place of another, whole; false if it cannot be.
bool replace_private_file(const std::string& path, const std::string& text) {
  std::string made = path + ".XXXXXX";
  const int file = mkstemp(made.data());
  if (file < 0) {
    return false;
  }
  close(file);
  std::ofstream(made) << text << std::flush;
  std::error_code error;
  const bool is_whole = std::filesystem::file_size(made, error) == text.size();
  if (is_whole) {
    std::filesystem::rename(made, path, error);
  }
  std::error_code ignored;
  std::filesystem::remove(made, ignored);
  return is_whole && !error;
}

std::string text_of(const nlohmann::json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

/// Credentials as processes, containers and machines say them.
Credentials from_json(
    const std::string& text,
    const char* token,
    const std::string& source,
    const std::string& hint = ""
) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || text_of(json, "AccessKeyId").empty() ||
      text_of(json, "SecretAccessKey").empty()) {
    fail(source, "the answer holds no AccessKeyId and SecretAccessKey", hint);
  }
  return {
      text_of(json, "AccessKeyId"),
      text_of(json, "SecretAccessKey"),
      text_of(json, token),
      seconds_of(text_of(json, "Expiration")),
      source};
}

std::string why(const HttpReply& reply) {
  if (!reply.trouble.empty()) {
    return reply.trouble;
  }
  const std::string code = first_element(reply.body, "Code");
  return "the answer is " + std::to_string(reply.status) + (code.empty() ? "" : " " + code);
}

/// The first line's words of a file with a token.
std::string token_of(const std::string& path, const std::string& source) {
  auto token = read_small_file(path);
  if (!token) {
    fail(source, "cannot read the token in " + path, "");
  }
  token->erase(token->find_last_not_of(" \r\n\t") + 1);
  return *token;
}

class CredentialFinder {
public:
  CredentialFinder(const CredentialsPlace& place, Http& http)
      : place_(place)
      , http_(http)
      , profiles_(place.environment, place.profile) {}

  Credentials find() {
    if (place_.given.sign()) {
      return place_.given;
    }
    if (place_.profile.empty()) {
      if (!env("AWS_ACCESS_KEY_ID").empty()) {
        return {
            env("AWS_ACCESS_KEY_ID"),
            env("AWS_SECRET_ACCESS_KEY"),
            env("AWS_SESSION_TOKEN"),
            0,
            "the environment"};
      }
      if (!env("AWS_WEB_IDENTITY_TOKEN_FILE").empty()) {
        return web_identity(
            env("AWS_ROLE_ARN"),
            env("AWS_WEB_IDENTITY_TOKEN_FILE"),
            env("AWS_ROLE_SESSION_NAME"),
            "the web identity in AWS_WEB_IDENTITY_TOKEN_FILE"
        );
      }
    }
    if (Credentials found = profile(profiles_.name(), kMostRoles); found.sign()) {
      return found;
    }
    if (!place_.profile.empty() || !env("AWS_PROFILE").empty()) {
      fail(
          "the profile " + profiles_.name(),
          "neither file has such a profile with credentials",
          "look at " + profiles_.folder() + "/config and /credentials"
      );
    }
    if (Credentials found = container(); found.sign()) {
      return found;
    }
    if (Credentials found = machine(); found.sign()) {
      return found;
    }
    throw Error(
        "there are no credentials for the object store",
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE to a profile of "
        "~/.aws; anonymous = true reads what is public",
        exit_code::data
    );
  }

private:
  std::string env(const std::string& name) const { return place_.environment(name); }

  std::string service_url(const std::string& service, const std::string& otherwise) const {
    for (const std::string& name :
         {"AWS_ENDPOINT_URL_" + service, std::string("AWS_ENDPOINT_URL")}) {
      if (!env(name).empty()) {
        return env(name);
      }
    }
    return otherwise;
  }

  std::string session_name(const std::string& given) const {
    return given.empty() ? "megahost-" + std::to_string(std::random_device()()) : given;
  }

  /// Asks STS for the credentials of a role; `signer` may be empty.
  Credentials assume(Query query, const Credentials& signer, const std::string& source) {
    query["Version"] = "2011-06-15";
    const std::string url = service_url("STS", "https://sts." + place_.region + ".amazonaws.com");
    const std::string body = query_text(query);
    Headers headers{
        {"content-type", "application/x-www-form-urlencoded; charset=utf-8"},
        {"host", host_of(url)}};
    if (signer.sign()) {
      const SigningScope scope{place_.region, "sts", std::time(nullptr)};
      sign(signer, scope, "POST", "/", "", sha256(body), headers);
    }
    const HttpReply reply =
        ask({.method = "POST", .url = url + "/", .headers = headers, .body = body});
    const std::string found = first_element(reply.body, "Credentials");
    if (!reply.ok() || found.empty()) {
      fail(source, "STS does not give them: " + why(reply), "may this identity assume the role?");
    }
    return {
        first_element(found, "AccessKeyId"),
        first_element(found, "SecretAccessKey"),
        first_element(found, "SessionToken"),
        seconds_of(first_element(found, "Expiration")),
        source};
  }

  Credentials web_identity(
      const std::string& role,
      const std::string& token_file,
      const std::string& name,
      const std::string& source
  ) {
    return assume(
        {{"Action", "AssumeRoleWithWebIdentity"},
         {"RoleArn", role},
         {"RoleSessionName", session_name(name)},
         {"WebIdentityToken", token_of(token_file, source)}},
        {},
        source
    );
  }

  /// The credentials of a profile; empty ones if it has none.
  Credentials profile(const std::string& name, int roles_left) {
    const Settings* settings = profiles_.find(name);
    if (settings == nullptr) {
      return {};
    }
    const auto get = [settings](const char* key) { return value_of(*settings, key); };
    const std::string source = "the profile " + name;
    if (!get("role_arn").empty() && !get("web_identity_token_file").empty()) {
      return web_identity(
          get("role_arn"), get("web_identity_token_file"), get("role_session_name"), source
      );
    }
    // A profile that is its own source has keys.
    const bool own_keys = !get("aws_access_key_id").empty();
    if (!get("role_arn").empty() && (get("source_profile") != name || roles_left == kMostRoles)) {
      return role(*settings, name, roles_left);
    }
    if (own_keys) {
      return {
          get("aws_access_key_id"),
          get("aws_secret_access_key"),
          get("aws_session_token"),
          0,
          source};
    }
    if (!get("sso_account_id").empty()) {
      return single_sign_on(*settings, source);
    }
    return get("credential_process").empty() ? Credentials()
                                             : process(get("credential_process"), source);
  }

  Credentials role(const Settings& settings, const std::string& name, int roles_left) {
    const auto get = [&settings](const char* key) { return value_of(settings, key); };
    const std::string source = "the profile " + name;
    if (roles_left == 0) {
      fail(source, "its roles are assumed by one another", "look at source_profile");
    }
    Credentials signer;
    if (!get("source_profile").empty()) {
      signer = profile(get("source_profile"), roles_left - 1);
    } else if (get("credential_source") == "Environment") {
      signer = {env("AWS_ACCESS_KEY_ID"), env("AWS_SECRET_ACCESS_KEY"), env("AWS_SESSION_TOKEN")};
    } else if (get("credential_source") == "EcsContainer") {
      signer = container();
    } else if (get("credential_source") == "Ec2InstanceMetadata") {
      signer = machine();
    }
    if (!signer.sign()) {
      fail(
          source,
          "it has a role_arn, and nothing to assume it with",
          "give source_profile, credential_source or web_identity_token_file"
      );
    }
    Query query{
        {"Action", "AssumeRole"},
        {"RoleArn", get("role_arn")},
        {"RoleSessionName", session_name(get("role_session_name"))}};
    if (!get("external_id").empty()) {
      query["ExternalId"] = get("external_id");
    }
    if (!get("duration_seconds").empty()) {
      query["DurationSeconds"] = get("duration_seconds");
    }
    return assume(std::move(query), signer, source);
  }

  /// A token in place of one that ends, by the refresh token next to it; nothing where there is none
  /// that counts.
  ///
  /// Source:  IAM Identity Center OIDC API Reference, "CreateToken"
  std::optional<nlohmann::json>
  renewed_token(const nlohmann::json& cached, const std::string& region) {
    const std::time_t registered = seconds_of(text_of(cached, "registrationExpiresAt"));
    if (text_of(cached, "refreshToken").empty() || registered <= std::time(nullptr)) {
      return std::nullopt;
    }
    const std::string body =
        nlohmann::json{
            {"clientId", text_of(cached, "clientId")},
            {"clientSecret", text_of(cached, "clientSecret")},
            {"grantType", "refresh_token"},
            {"refreshToken", text_of(cached, "refreshToken")}}
            .dump();
    const HttpReply reply = ask(
        {.method = "POST",
         .url = service_url("SSO_OIDC", "https://oidc." + region + ".amazonaws.com") + "/token",
         .headers = {{"content-type", "application/json"}},
         .body = body}
    );
    const auto given = nlohmann::json::parse(reply.body, nullptr, false);
    if (!reply.ok() || !given.is_object() || text_of(given, "accessToken").empty()) {
      return std::nullopt;
    }
    nlohmann::json token = cached;
    token["accessToken"] = given["accessToken"];
    const auto seconds = given.value("expiresIn", nlohmann::json());
    token["expiresAt"] = iso_time(
        std::time(nullptr) + (seconds.is_number_integer() ? seconds.get<std::time_t>() : 0)
    );
    if (const std::string next = text_of(given, "refreshToken"); !next.empty()) {
      token["refreshToken"] = next;
    }
    return token;
  }

  /// With the token that `aws sso login` has left, which is renewed in its file where it ends.
  Credentials single_sign_on(const Settings& settings, const std::string& source) {
    const std::string session = value_of(settings, "sso_session");
    const Settings* shared = profiles_.session(session);
    if (!session.empty() && shared == nullptr) {
      fail(source, "there is no sso-session " + session, "");
    }
    const Settings& where = shared == nullptr ? settings : *shared;
    const std::string login = "run `aws sso login --profile " + profiles_.name() + "`";
    const std::string file = profiles_.folder() + "/sso/cache/" +
                             sha1(session.empty() ? value_of(where, "sso_start_url") : session) +
                             ".json";
    auto cached = nlohmann::json::parse(read_small_file(file).value_or(""), nullptr, false);
    if (!cached.is_object() || text_of(cached, "accessToken").empty()) {
      fail(source, "there is no token of single sign-on", login);
    }
    const std::time_t until = seconds_of(text_of(cached, "expiresAt"));
    const std::time_t left = until == 0 ? kRenewTokenBefore : until - std::time(nullptr);
    if (left < kRenewTokenBefore) {
      if (auto renewed = renewed_token(cached, value_of(where, "sso_region"))) {
        cached = std::move(*renewed);
        (void)replace_private_file(file, cached.dump()); // else the next start renews it again
      } else if (left <= 0) {
        fail(source, "the token of single sign-on has expired", login);
      }
    }
    const std::string base = service_url(
        "SSO", "https://portal.sso." + value_of(where, "sso_region") + ".amazonaws.com"
    );
    const Query query{
        {"account_id", value_of(settings, "sso_account_id")},
        {"role_name", value_of(settings, "sso_role_name")}};
    const HttpReply reply = ask(
        {.url = base + "/federation/credentials?" + query_text(query),
         .headers = {{"x-amz-sso_bearer_token", text_of(cached, "accessToken")}}}
    );
    const auto json = nlohmann::json::parse(reply.body, nullptr, false);
    const auto role = json.is_object() ? json.value("roleCredentials", nlohmann::json()) : json;
    if (!reply.ok() || !role.is_object() || text_of(role, "accessKeyId").empty()) {
      fail(source, "single sign-on does not give them: " + why(reply), login);
    }
    const auto ends = role.value("expiration", nlohmann::json());
    return {
        text_of(role, "accessKeyId"),
        text_of(role, "secretAccessKey"),
        text_of(role, "sessionToken"),
        ends.is_number_integer() ? static_cast<std::time_t>(ends.get<int64_t>() / 1000) : 0,
        source};
  }

  /// The standard error of the process is not kept: it may have secrets, and would be in logs.
  Credentials process(const std::string& command, const std::string& source) {
    const std::string quiet = "exec 2>/dev/null; " + command;
    const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(quiet.c_str(), "re"), &pclose);
    std::string text;
    std::array<char, 4096> block{};
    while (pipe != nullptr) {
      const size_t got = std::fread(block.data(), 1, block.size(), pipe.get());
      if (got == 0 || text.size() > (1 << 20)) {
        break;
      }
      text.append(block.data(), got);
    }
    return from_json(
        text,
        "SessionToken",
        "the credential_process of " + source.substr(4),
        "run its command by hand: it says why"
    );
  }

  Credentials container() {
    std::string url = env("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    if (const std::string path = env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"); !path.empty()) {
      url = kContainer + path;
    }
    if (url.empty()) {
      return {};
    }
    const std::string source = "the container";
    Headers headers;
    std::string token = env("AWS_CONTAINER_AUTHORIZATION_TOKEN");
    if (const std::string file = env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); !file.empty()) {
      token = token_of(file, source);
    }
    if (!token.empty()) {
      headers["authorization"] = token;
    }
    const HttpReply reply = ask({.url = url, .headers = headers});
    if (!reply.ok()) {
      fail(source, why(reply), "");
    }
    return from_json(reply.body, "Token", source);
  }

  /// Empty ones if there is no such service: most machines are not of that cloud.
  Credentials machine() {
    if (env("AWS_EC2_METADATA_DISABLED") == "true") {
      return {};
    }
    std::string base = env("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    base = base.empty() ? kMachine : base;
    const auto asked = [&](HttpRequest request) {
      request.url = base + request.url;
      request.connect_ms = request.total_ms = 1000;
      return http_.ask(request);
    };
    const HttpReply token = asked(
        {.method = "PUT",
         .url = "/latest/api/token",
         .headers = {{"x-aws-ec2-metadata-token-ttl-seconds", "21600"}}}
    );
    if (!token.ok()) {
      return {};
    }
    const Headers headers{{"x-aws-ec2-metadata-token", token.body}};
    const std::string path = "/latest/meta-data/iam/security-credentials/";
    const HttpReply role = asked({.url = path, .headers = headers});
    if (!role.ok() || role.body.empty()) {
      return {};
    }
    const std::string source = "this machine's role";
    const HttpReply reply = asked(
        {.url = path + percent_encoded(role.body.substr(0, role.body.find('\n'))),
         .headers = headers}
    );
    if (!reply.ok()) {
      fail(source, why(reply), "");
    }
    return from_json(reply.body, "Token", source);
  }

  HttpReply ask(HttpRequest request) {
    if (!request.url.starts_with("http://") && !request.url.starts_with("https://")) {
      return {.trouble = "its address is neither http nor https"};
    }
    request.total_ms = 10'000;
    HttpReply reply = http_.ask(request);
    for (int tries = 0; tries < 2 && (reply.status == 0 || reply.status >= 500); ++tries) {
      reply = http_.ask(request);
    }
    return reply;
  }

  const CredentialsPlace& place_;
  Http& http_;
  Profiles profiles_;
};

} // namespace

Credentials find_credentials(const CredentialsPlace& place, Http& http) {
  return CredentialFinder(place, http).find();
}

CredentialsCache::CredentialsCache(CredentialsPlace place, Http& http)
    : place_(std::move(place))
    , http_(http) {}

Credentials CredentialsCache::get() {
  const std::lock_guard lock(mutex_);
  if (!found_.sign() || (found_.until != 0 && found_.until - std::time(nullptr) < kRenewBefore)) {
    found_ = find_credentials(place_, http_);
  }
  return found_;
}

void CredentialsCache::refused(const Credentials& credentials) {
  const std::lock_guard lock(mutex_);
  if (found_.key == credentials.key && found_.token == credentials.token) {
    found_ = {};
  }
}

} // namespace s3
