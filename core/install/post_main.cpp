// megahost-post URL CERTIFICATES TOKEN FILE: posts a file of JSON. CERTIFICATES and TOKEN are files, or
// empty: of the certificates that the server is trusted by, and of the bearer token that it asks for.
// A process of its own: the program does without libcurl. Says on the standard error what is wrong.

#include <curl/curl.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

namespace {

constexpr long kSeconds = 15;

struct Free {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }

  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

/// Reads a file whole; says where it cannot.
bool read(const char* path, std::string& ret_text) {
  std::ifstream file(path, std::ios::binary);
  ret_text.assign(std::istreambuf_iterator<char>(file), {});
  if (!file) {
    std::fprintf(stderr, "%s cannot be read\n", path);
  }
  return static_cast<bool>(file);
}

std::string without_end(std::string text) {
  text.erase(text.find_last_not_of(" \r\n") + 1);
  return text;
}

size_t keep(char* from, size_t size, size_t count, void* to) {
  auto& text = *static_cast<std::string*>(to);
  text.append(from, text.size() < 500 ? size * count : 0);
  return size * count;
}

} // namespace

int main(int count, char** arguments) {
  if (count != 5) {
    std::fputs("megahost-post takes a URL and three files\n", stderr);
    return 2;
  }
  std::string body, token;
  if (!read(arguments[4], body) || (*arguments[3] != '\0' && !read(arguments[3], token))) {
    return 1;
  }
  curl_global_init(CURL_GLOBAL_DEFAULT);
  const std::unique_ptr<CURL, Free> handle(curl_easy_init());
  std::unique_ptr<curl_slist, Free> headers(
      curl_slist_append(nullptr, "Content-Type: application/json")
  );
  if (!token.empty()) {
    const std::string header = "Authorization: Bearer " + without_end(token);
    headers.reset(curl_slist_append(headers.release(), header.c_str()));
  }
  std::string answer;
  CURL* const post = handle.get();
  curl_easy_setopt(post, CURLOPT_URL, arguments[1]);
  curl_easy_setopt(post, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(post, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(post, CURLOPT_POSTFIELDS, body.c_str());
  curl_easy_setopt(post, CURLOPT_TIMEOUT, kSeconds);
  curl_easy_setopt(post, CURLOPT_WRITEFUNCTION, &keep);
  curl_easy_setopt(post, CURLOPT_WRITEDATA, &answer);
  if (*arguments[2] != '\0') {
    curl_easy_setopt(post, CURLOPT_CAINFO, arguments[2]);
  }
  if (const CURLcode code = curl_easy_perform(post); code != CURLE_OK) {
    std::fprintf(stderr, "%s\n", curl_easy_strerror(code));
    return 1;
  }
  long status = 0;
  curl_easy_getinfo(post, CURLINFO_RESPONSE_CODE, &status);
  if (status / 100 != 2) {
    std::fprintf(stderr, "HTTP status %ld: %s\n", status, without_end(answer).c_str());
    return 1;
  }
  return 0;
}
