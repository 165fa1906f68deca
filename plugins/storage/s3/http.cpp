#include "http.hpp"

#include <algorithm>
#include <cctype>
#include <cstring>

namespace s3 {

namespace {

constexpr size_t kMostBody = size_t{64} << 20; // bytes of an answer that is text
constexpr size_t kMostHeaders = 1000;

struct HttpTransfer {
  const HttpRequest& request;
  HttpReply reply{};
  size_t sent = 0;
  CURL* handle = nullptr;

  [[nodiscard]] bool into_buffer() const {
    long status = 0;
    curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
    return !request.into.empty() && status / 100 == 2;
  }
};

size_t send_body(char* to, size_t size, size_t count, void* user) {
  auto& transfer = *static_cast<HttpTransfer*>(user);
  const std::string_view left = transfer.request.body.substr(transfer.sent);
  const size_t now = std::min(left.size(), size * count);
  std::memcpy(to, left.data(), now);
  transfer.sent += now;
  return now;
}

int seek_body(void* user, curl_off_t offset, int origin) {
  if (origin != SEEK_SET) {
    return CURL_SEEKFUNC_CANTSEEK;
  }
  static_cast<HttpTransfer*>(user)->sent = static_cast<size_t>(offset);
  return CURL_SEEKFUNC_OK;
}

size_t receive_body(char* from, size_t size, size_t count, void* user) {
  auto& transfer = *static_cast<HttpTransfer*>(user);
  HttpReply& reply = transfer.reply;
  const size_t bytes = size * count;
  if (transfer.into_buffer()) {
    if (bytes > transfer.request.into.size() - reply.received) {
      return 0;
    }
    std::memcpy(transfer.request.into.data() + reply.received, from, bytes);
    reply.received += bytes;
  } else {
    if (bytes > kMostBody - reply.body.size()) {
      return 0;
    }
    reply.body.append(from, bytes);
  }
  return bytes;
}

size_t receive_header(char* from, size_t size, size_t count, void* user) {
  HttpReply& reply = static_cast<HttpTransfer*>(user)->reply;
  const std::string_view line(from, size * count);
  if (line.starts_with("HTTP/")) {
    reply.headers.clear(); // those before were of an interim answer
  }
  const size_t colon = line.find(':');
  if (colon != std::string_view::npos && reply.headers.size() < kMostHeaders) {
    std::string name(line.substr(0, colon));
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) {
      return static_cast<char>(std::tolower(c));
    });
    const size_t begin = std::min(line.find_first_not_of(" \t", colon + 1), line.size());
    const size_t end = line.find_last_not_of(" \t\r\n");
    reply.headers[name] = begin <= end ? line.substr(begin, end - begin + 1) : std::string_view();
  }
  return line.size();
}

/// Trouble that is the same at the next try.
bool is_hopeless(CURLcode code) {
  return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
         code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL ||
         code == CURLE_SSL_ISSUER_ERROR;
}

} // namespace

std::string HttpReply::header(std::string_view name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

Http::Http(std::string ca_file, long stall_seconds)
    : ca_file_(std::move(ca_file))
    , stall_seconds_(stall_seconds) {
  curl_global_init(CURL_GLOBAL_DEFAULT); // it counts its calls
}

Http::~Http() {
  idle_.clear();
  curl_global_cleanup();
}

Http::Handle Http::take() {
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) {
    return {curl_easy_init(), &curl_easy_cleanup};
  }
  Handle handle = std::move(idle_.back());
  idle_.pop_back();
  return handle;
}

void Http::give_back(Handle handle) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(handle));
}

HttpReply Http::ask(const HttpRequest& request) {
  Handle handle = take();
  CURL* curl = handle.get();
  curl_easy_reset(curl);
  HttpTransfer transfer{.request = request, .handle = curl};
  std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> lines(nullptr, &curl_slist_free_all);
  const auto add = [&](const std::string& line) {
    lines.reset(curl_slist_append(lines.release(), line.c_str()));
  };
  for (const auto& [name, value] : request.headers) {
    if (name != "host") { // libcurl says it itself, the same
      add(value.empty() ? name + ";" : name + ": " + value);
    }
  }
  add("Expect:"); // no waiting for an interim answer
  if (!request.headers.contains("content-type")) {
    add("Content-Type:");
  }
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L); // the path is signed as it is
  curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, lines.get());
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "megahost");
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, request.connect_ms);
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, request.total_ms);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1024L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, stall_seconds_ * (request.patient ? 20 : 1));
  curl_easy_setopt(curl, CURLOPT_TCP_KEEPALIVE, 1L);
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 256L << 10);
  curl_easy_setopt(curl, CURLOPT_UPLOAD_BUFFERSIZE, 256L << 10);
  if (!ca_file_.empty()) {
    curl_easy_setopt(curl, CURLOPT_CAINFO, ca_file_.c_str());
  }
  if (request.method == "PUT" || request.method == "POST") {
    curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    curl_easy_setopt(curl, CURLOPT_READFUNCTION, &send_body);
    curl_easy_setopt(curl, CURLOPT_READDATA, &transfer);
    curl_easy_setopt(curl, CURLOPT_SEEKFUNCTION, &seek_body);
    curl_easy_setopt(curl, CURLOPT_SEEKDATA, &transfer);
  }
  curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &receive_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &receive_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
  const CURLcode code = curl_easy_perform(curl);
  if (code == CURLE_OK) {
    long status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    transfer.reply.status = static_cast<int>(status);
  } else {
    transfer.reply.trouble = curl_easy_strerror(code);
    transfer.reply.hopeless = is_hopeless(code);
  }
  give_back(std::move(handle));
  return std::move(transfer.reply);
}

} // namespace s3
