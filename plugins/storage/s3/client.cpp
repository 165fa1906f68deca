#include "client.hpp"

#include "xml.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <exception>
#include <random>
#include <thread>
#include <utility>

namespace s3 {

namespace {

using mh::Error;
using mh::StorageError;
using namespace std::chrono_literals;

constexpr std::string_view kScheme = "s3://";
constexpr size_t kMostKey = 1024;
constexpr auto kFirstWait = 100ms, kLongestWait = 20'000ms;

const std::string& first_given(const std::string& a, const std::string& b) {
  return a.empty() ? b : a;
}

/// Options, and what the environment and the profile say of those that are not given.
Options completed(Options options, const EnvironmentReader& environment) {
  const Profiles profiles(environment, options.profile);
  const auto fill = [&](std::string& ret_value,
                        std::initializer_list<const char*> variables,
                        std::initializer_list<const char*> settings) {
    for (const char* name : variables) {
      ret_value = first_given(ret_value, environment(name));
    }
    for (const char* name : settings) {
      ret_value = first_given(ret_value, profiles.setting(name));
    }
  };
  fill(options.region, {"AWS_REGION", "AWS_DEFAULT_REGION"}, {"region"});
  fill(
      options.endpoint,
      {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"},
      {"s3.endpoint_url", "endpoint_url"}
  );
  fill(options.ca_file, {"AWS_CA_BUNDLE"}, {"ca_bundle"});
  if (options.addressing == "auto") {
    const std::string style = profiles.setting("s3.addressing_style");
    options.addressing = style == "virtual" ? "host" : style == "path" ? "path" : "auto";
  }
  options.region = first_given(options.region, "us-east-1");
  while (options.endpoint.ends_with('/')) {
    options.endpoint.pop_back();
  }
  // A name and a password would be shown by messages.
  const bool is_address =
      options.endpoint.starts_with("http://") || options.endpoint.starts_with("https://");
  if (!options.endpoint.empty() &&
      (!is_address || options.endpoint.find_first_of("@?# ") != std::string::npos)) {
    throw Error(
        "storage.endpoint (or AWS_ENDPOINT_URL) is no address of a store",
        "https://HOST:PORT, or http:// where there is no TLS; credentials have no place in it"
    );
  }
  return options;
}

/// A name that AWS gives as a host's first part, and whose certificate it has.
bool fits_host(const std::string& bucket) {
  return std::all_of(bucket.begin(), bucket.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
}

bool is_expired(std::string_view code) {
  return code == "ExpiredToken" || code == "ExpiredTokenException" ||
         code == "TokenRefreshRequired" || code == "RequestExpired";
}

/// Whether another try may fare better.
bool is_passing(const Reply& reply) {
  const int status = reply.status;
  return (status == 0 && !reply.hopeless) || status == 408 || status == 429 || status == 500 ||
         (status >= 502 && status <= 504) || (status == 200 && !reply.code.empty()) ||
         reply.code == "RequestTimeout" || reply.code == "ConditionalRequestConflict" ||
         reply.code == "OperationAborted" || reply.code == "BadDigest" ||
         reply.code == "XAmzContentSHA256Mismatch" || is_expired(reply.code);
}

/// Random, so that many ranks do not come again at the same moment.
void wait_before(int next_try) {
  thread_local std::minstd_rand generator(std::random_device{}());
  const auto longest = std::min(kLongestWait, kFirstWait * (1 << std::min(next_try - 1, 8)));
  std::this_thread::sleep_for(std::chrono::milliseconds(
      std::uniform_int_distribution<int64_t>(1, longest.count())(generator)
  ));
}

/// An error's code; nothing where it is no word.
std::string code_of(const HttpReply& reply) {
  const std::string code = first_element(reply.body, "Code");
  const bool is_word =
      code.size() <= 64 && std::all_of(code.begin(), code.end(), [](unsigned char c) {
        return std::isalnum(c) != 0 || c == '.';
      });
  return is_word ? code : "";
}

/// A server's words, short and in one line.
std::string message_of(const HttpReply& reply) {
  std::string message = unescaped(first_element(reply.body, "Message")).substr(0, 200);
  std::replace_if(
      message.begin(), message.end(), [](char c) { return c >= 0 && c < ' '; }, ' '
  );
  return message;
}

/// How many seconds this machine's clock is ahead of the server's.
std::string clock_difference(const HttpReply& reply) {
  const std::time_t theirs = curl_getdate(reply.header("date").c_str(), nullptr);
  return theirs < 0 ? "" : " by " + std::to_string(std::time(nullptr) - theirs) + " seconds";
}

} // namespace

ObjectPlace place_of(const mh::Path& path) {
  const std::string& text = path.native();
  const auto refuse = [&](const std::string& reason, const char* hint = "s3://BUCKET/KEY") {
    throw Error(text + ": " + reason, hint, mh::exit_code::data);
  };
  if (!text.starts_with(kScheme)) {
    refuse("this is no path of an object store");
  }
  const std::string rest = text.substr(kScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  ObjectPlace place{rest.substr(0, slash), rest.substr(std::min(slash + 1, rest.size()))};
  const bool is_bucket = place.bucket.size() >= 3 && place.bucket.size() <= 63 &&
                         std::all_of(place.bucket.begin(), place.bucket.end(), [](unsigned char c) {
                           return std::isalnum(c) != 0 || c == '-' || c == '.' || c == '_';
                         });
  if (!is_bucket || place.bucket.front() == '.') {
    refuse("\"" + place.bucket + "\" cannot be the name of a bucket");
  }
  if (place.key.size() > kMostKey) {
    refuse(
        "the key has " + std::to_string(place.key.size()) + " bytes, and stores take 1,024",
        "choose a shorter path, of checkpoint.dir or of what is written"
    );
  }
  for (const mh::Path& part : mh::Path(place.key)) {
    if (part == "." || part == "..") {
      refuse("a key cannot have the part \"" + part.string() + "\"");
    }
  }
  return place;
}

StoreClient::StoreClient(
    const Options& options, EnvironmentReader environment, const Credentials& given
)
    : options_(completed(options, environment))
    , own_endpoint_(!options_.endpoint.empty())
    , http_(options_.ca_file, static_cast<long>(options_.stall))
    , credentials_({std::move(environment), options_.profile, options_.region, given}, http_) {}

std::string StoreClient::region_of(const std::string& bucket) {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(bucket);
  return found == regions_.end() ? options_.region : found->second;
}

StoreClient::Address StoreClient::address(const Request& request) {
  const std::string& bucket = request.place.bucket;
  const std::string region = region_of(bucket);
  const std::string endpoint = own_endpoint_ ? options_.endpoint
                                             : "https://s3." + region + ".amazonaws.com" +
                                                   (region.starts_with("cn-") ? ".cn" : "");
  const bool by_host = options_.addressing == "host" ||
                       (options_.addressing == "auto" && !own_endpoint_ && fits_host(bucket));
  const size_t host = endpoint.find("://") + 3;
  const std::string base =
      by_host ? endpoint.substr(0, host) + bucket + "." + endpoint.substr(host) : endpoint;
  Address address{host_of(base), "", ""};
  const std::string below = base.substr(base.find("://") + 3 + address.host.size());
  address.path = below + (by_host ? "" : "/" + percent_encoded(bucket)) + "/" +
                 percent_encoded(request.place.key, /*keep_slashes=*/true);
  if (request.place.key.empty() && !by_host) {
    address.path.pop_back();
  }
  address.url = base.substr(0, base.size() - below.size()) + address.path;
  return address;
}

HttpReply StoreClient::once(const Request& request, const Credentials& credentials) {
  const Address to = address(request);
  const std::string query = query_text(request.query);
  Headers headers = request.headers;
  headers["host"] = to.host;
  const bool covers_body = options_.sign_payload == "auto" ? !to.url.starts_with("https://")
                                                           : options_.sign_payload == "always";
  const std::string payload = covers_body ? sha256(request.body) : kUnsignedPayload;
  headers["x-amz-content-sha256"] = payload;
  if (credentials.sign()) {
    const SigningScope scope{region_of(request.place.bucket), "s3", std::time(nullptr)};
    sign(credentials, scope, request.method, to.path, query, payload, headers);
  }
  return http_.ask(
      {.method = request.method,
       .url = to.url + (query.empty() ? "" : "?" + query),
       .headers = std::move(headers),
       .body = request.body,
       .into = request.into,
       .patient = request.method == "POST"} // putting parts together takes some stores minutes
  );
}

bool StoreClient::redirected(const Request& request, const Reply& reply) {
  const bool wrong_region = reply.status == 301 || reply.status == 307 ||
                            reply.code == "AuthorizationHeaderMalformed" ||
                            reply.code == "IllegalLocationConstraintException";
  const std::string region =
      first_given(reply.header("x-amz-bucket-region"), first_element(reply.body, "Region"));
  const bool is_name = std::all_of(region.begin(), region.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-';
  });
  if (!wrong_region || region.empty() || region.size() > 64 || !is_name ||
      region == region_of(request.place.bucket)) {
    return false;
  }
  const std::lock_guard lock(mutex_);
  regions_[request.place.bucket] = region;
  return true;
}

Reply StoreClient::ask(const Request& request) {
  for (int tries = 1, redirects = 0;; ++tries) {
    const Credentials credentials = options_.anonymous ? Credentials() : credentials_.get();
    Reply reply{once(request, credentials), tries, ""};
    if (!reply.ok() ||
        (request.method == "POST" && reply.body.find("<Error>") != std::string::npos)) {
      reply.code = code_of(reply);
    }
    if (redirects < 3 && redirected(request, reply)) {
      ++redirects;
      --tries;
      continue;
    }
    if (is_expired(reply.code)) {
      credentials_.refused(credentials);
    }
    if (!is_passing(reply)) {
      if (reply.status == 0) {
        throw error(request, reply);
      }
      return reply;
    }
    if (tries >= options_.tries) {
      throw error(request, reply);
    }
    wait_before(tries);
  }
}

Reply StoreClient::require(const Request& request, std::initializer_list<int> also) {
  Reply reply = ask(request);
  if (!reply.ok() && std::find(also.begin(), also.end(), reply.status) == also.end()) {
    throw error(request, reply);
  }
  return reply;
}

StorageError StoreClient::error(const Request& request, const Reply& reply) {
  const std::string host = address(request).host, code = reply.code;
  const std::string said = code.empty() ? "" : " (" + code + ")";
  const auto make = [&](int number, const std::string& reason, const std::string& hint) {
    return StorageError(request.action, request.path, number, reason, hint);
  };
  const auto from = [&] {
    try {
      return options_.anonymous ? std::string("an anonymous user") : credentials_.get().source;
    } catch (const Error&) {
      return std::string("an anonymous user");
    }
  };
  const std::string tries =
      reply.tries > 1 ? ", after " + std::to_string(reply.tries) + " tries" : "";
  if (reply.status == 0 && reply.hopeless) {
    return make(
        EPROTO,
        host + ": " + reply.trouble,
        "storage.ca_file or AWS_CA_BUNDLE names the certificates that are trusted"
    );
  }
  if (reply.status == 0) {
    return make(
        EHOSTUNREACH,
        host + " does not answer: " + reply.trouble + tries,
        "look at storage.endpoint (or AWS_ENDPOINT_URL) and at the network"
    );
  }
  if (code == "NoSuchBucket") {
    return make(
        ENXIO,
        "there is no bucket " + request.place.bucket + " at " + host,
        "make it, or look at the path, storage.region and storage.endpoint"
    );
  }
  if (code == "RequestTimeTooSkewed") {
    return make(
        EINVAL,
        "this machine's clock differs from the server's" + clock_difference(reply),
        "set the clock; signatures hold for 15 minutes"
    );
  }
  if (is_expired(code)) {
    return make(EACCES, "the credentials of " + from() + " have expired" + tries, "renew them");
  }
  if (code == "SignatureDoesNotMatch" || code == "InvalidAccessKeyId" || code == "InvalidToken") {
    return make(
        EACCES,
        "the credentials of " + from() + " are refused" + said,
        "look at key and secret, and whether they are " + host + "'s"
    );
  }
  if (code == "KeyTooLongError") {
    return make(
        ENAMETOOLONG, "the key is too long for the store", "choose a shorter checkpoint.dir"
    );
  }
  if (code == "QuotaExceeded" || reply.status == 507) {
    return make(EDQUOT, "the quota is used up" + said, "remove what is old, or have it raised");
  }
  if (reply.status == 403 || reply.status == 401) {
    return make(
        EACCES,
        "access is denied to the credentials of " + from() + said,
        "have s3:GetObject, s3:PutObject, s3:ListBucket, s3:DeleteObject and "
        "s3:AbortMultipartUpload allowed there"
    );
  }
  if (reply.status == 501) {
    return make(ENOSYS, "the store does not know this request" + said, "");
  }
  if (code == "NoSuchUpload") {
    return make(
        ENOENT,
        "its upload was ended by another",
        "does another run, or `megahost checkpoint gc`, use this place?"
    );
  }
  if (reply.status == 404) {
    return make(ENOENT, "it is not there", "");
  }
  const std::string message = message_of(reply);
  return make(
      EIO,
      host + " answers " + std::to_string(reply.status) + (code.empty() ? "" : " " + code) + tries +
          (message.empty() ? "" : ": " + message),
      ""
  );
}

void in_parallel(size_t count, size_t threads, const std::function<void(size_t)>& run) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        run(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        failure = failure ? failure : std::current_exception();
        next = count;
      }
    }
  };
  std::vector<std::jthread> others;
  for (size_t i = 1; i < std::min(count, threads); ++i) {
    others.emplace_back(work);
  }
  work();
  others.clear();
  if (failure) {
    std::rethrow_exception(failure);
  }
}

} // namespace s3
