#include "storage.hpp"

#include "xml.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

namespace s3 {

namespace {

using mh::Path;

/// "a/b" -> "a/b/": a bucket's own prefix is empty.
std::string below(const std::string& key) {
  return key.empty() || key.ends_with('/') ? key : key + "/";
}

Request request_for(const char* action, const char* method, const Path& path) {
  return {.action = action, .path = path, .method = method, .place = place_of(path)};
}

/// Stores that do not know `encoding-type` do not say it back.
std::string decoded_key(const std::string& reply, const std::string& key) {
  const std::string plain = unescaped(key);
  return first_element(reply, "EncodingType") == "url" ? percent_decoded(plain) : plain;
}

} // namespace

void S3::fields(mh::Fields<Config>& f) {
  f.add(
      "endpoint",
      &Config::endpoint,
      "address of the store, https://HOST:PORT; unless given AWS_ENDPOINT_URL_S3, "
      "AWS_ENDPOINT_URL, the profile's endpoint_url, or Amazon's in the region"
  );
  f.add(
      "region",
      &Config::region,
      "unless given AWS_REGION, AWS_DEFAULT_REGION, the profile's, or us-east-1; a bucket that is "
      "in another is found"
  );
  f.add(
      "profile",
      &Config::profile,
      "profile of ~/.aws whose credentials count; unless given the environment's, those of "
      "AWS_PROFILE, of the container, of the machine"
  );
  f.add(
       "addressing",
       &Config::addressing,
       "where a bucket's name is: in the path, in the host; auto: in the host at Amazon, else in "
       "the path"
  )
      .one_of({"auto", "path", "host"});
  f.add(
       "ca_file",
       &Config::ca_file,
       "certificates that are trusted, as PEM; unless given AWS_CA_BUNDLE, or the system's"
  )
      .path();
  f.add(
       "sign_payload",
       &Config::sign_payload,
       "whether signatures cover the bytes of objects, by a SHA-256 of them; auto: where no TLS "
       "protects them; never: a CRC-32C alone does, for a network that is trusted"
  )
      .one_of({"auto", "always", "never"});
  f.add("anonymous", &Config::anonymous, "requests are not signed: for what is public");
  f.add(
      "checksums",
      &Config::checksums,
      "the store checks a CRC-32C of each object or part that it gets"
  );
  f.add(
       "part_size",
       &Config::part_size,
       "larger objects go in parts of this size, while they are written"
  )
      .range(5, 5000)
      .unit("MiB");
  f.add("connections", &Config::connections, "requests in flight for each object").range(1, 64);
  f.add("tries", &Config::tries, "attempts at a request that fails for a reason that may pass")
      .range(1, 20);
  f.add("stall", &Config::stall, "how long a connection may stand still before it counts as cut")
      .range(1, 3600)
      .unit("seconds");
}

S3::S3(const Config& config, const Args& /*args*/, const Credentials& given)
    : client_(std::make_shared<StoreClient>(config, process_environment(), given)) {}

std::unique_ptr<mh::Upload> S3::put(const Path& path, Existing existing) {
  return put_object(client_, path, existing);
}

std::unique_ptr<mh::ReadFile> S3::get(const Path& path) {
  return open_object(client_, path);
}

// A byte is asked for, because an answer without a body does not say what is missing.
bool S3::contains(const Path& path) {
  Request request = request_for("examine", "GET", path);
  if (request.place.key.empty()) {
    return false; // a bucket is no object
  }
  request.headers["range"] = "bytes=0-0";
  const Reply reply = client_->require(request, {404, 416});
  if (reply.code == "NoSuchBucket") {
    throw client_->error(request, reply);
  }
  return reply.status != 404;
}

std::vector<mh::Storage::Item> S3::list(const Path& prefix) {
  std::vector<Item> items;
  const std::string start = below(place_of(prefix).key);
  each_listed(prefix, "/", [&](const std::string& key, bool is_prefix) {
    std::string name = key.substr(std::min(start.size(), key.size()));
    name = name.substr(0, name.find('/'));
    if (key.starts_with(start) && !name.empty() && name != "." && name != "..") {
      items.push_back({std::move(name), is_prefix});
    }
  });
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return a.name < b.name;
  });
  return items;
}

void S3::remove(const Path& path) {
  (void)client_->require(request_for("remove", "DELETE", path), {404});
}

void S3::remove_all(const Path& prefix) {
  std::vector<std::string> keys;
  each_listed(prefix, "", [&](const std::string& key, bool) { keys.push_back(key); });
  in_parallel(keys.size(), static_cast<size_t>(client_->options().connections), [&](size_t i) {
    Request request = request_for("remove", "DELETE", prefix);
    request.place.key = keys[i];
    (void)client_->require(request, {404});
  });
}

std::vector<mh::Storage::Unfinished> S3::unfinished(const Path& prefix) {
  std::vector<Unfinished> found;
  const size_t start = below(place_of(prefix).key).size();
  each_unfinished(prefix, [&](const std::string& key, const std::string& upload) {
    Request parts = request_for("list the parts of an upload of", "GET", prefix);
    parts.place.key = key;
    parts.query = {{"uploadId", upload}};
    uint64_t bytes = 0;
    for (bool more = true; more;) {
      const Reply reply = client_->require(parts, {404}); // it may end meanwhile
      for (const std::string& part : elements(reply.body, "Part")) {
        bytes += std::strtoull(first_element(part, "Size").c_str(), nullptr, 10);
      }
      const std::string next = first_element(reply.body, "NextPartNumberMarker");
      more = first_element(reply.body, "IsTruncated") == "true" &&
             next != parts.query["part-number-marker"];
      parts.query["part-number-marker"] = next;
    }
    found.push_back({key.substr(start), bytes});
  });
  std::ranges::sort(found, {}, &Unfinished::name);
  return found;
}

void S3::remove_unfinished(const Path& prefix) {
  each_unfinished(prefix, [&](const std::string& key, const std::string& upload) {
    Request abort = request_for("remove an unfinished upload of", "DELETE", prefix);
    abort.place.key = key;
    abort.query = {{"uploadId", upload}};
    (void)client_->require(abort, {404});
  });
}

void S3::each_unfinished(
    const Path& prefix,
    const std::function<void(const std::string& key, const std::string& upload)>& see
) {
  Request request = request_for("list the unfinished uploads of", "GET", prefix);
  const std::string start = below(std::exchange(request.place.key, ""));
  request.query = {{"uploads", ""}, {"prefix", start}, {"encoding-type", "url"}};
  bool more = true;
  while (more) {
    const Reply reply = client_->require(request);
    for (const std::string& upload : elements(reply.body, "Upload")) {
      const std::string key = decoded_key(reply.body, first_element(upload, "Key"));
      if (key.starts_with(start)) {
        see(key, unescaped(first_element(upload, "UploadId")));
      }
    }
    const Query before = request.query;
    request.query["key-marker"] =
        decoded_key(reply.body, first_element(reply.body, "NextKeyMarker"));
    request.query["upload-id-marker"] = unescaped(first_element(reply.body, "NextUploadIdMarker"));
    more = first_element(reply.body, "IsTruncated") == "true" && request.query != before;
  }
}

void S3::each_listed(
    const Path& prefix,
    const std::string& delimiter,
    const std::function<void(const std::string& key, bool is_prefix)>& see
) {
  Request request = request_for("list", "GET", prefix);
  const std::string start = below(std::exchange(request.place.key, ""));
  request.query = {{"list-type", "2"}, {"prefix", start}, {"encoding-type", "url"}};
  if (!delimiter.empty()) {
    request.query["delimiter"] = delimiter;
  }
  for (bool more = true; more;) {
    const Reply reply = client_->require(request);
    for (const std::string& one : elements(reply.body, "Contents")) {
      see(decoded_key(reply.body, first_element(one, "Key")), false);
    }
    for (const std::string& one : elements(reply.body, "CommonPrefixes")) {
      see(decoded_key(reply.body, first_element(one, "Prefix")), true);
    }
    const std::string next = unescaped(first_element(reply.body, "NextContinuationToken"));
    more = first_element(reply.body, "IsTruncated") == "true" &&
           next != request.query["continuation-token"];
    request.query["continuation-token"] = next;
  }
}

} // namespace s3
