#pragma once
/// HTTP requests, each tried once, over connections that are kept open.

#include "sign.hpp"

#include <curl/curl.h>

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace s3 {

struct HttpRequest {
  std::string method = "GET";
  std::string url{};
  Headers headers{};
  std::string_view body{};
  /// The buffer for the body of an answer of 2xx, instead of HttpReply::body; a body that does not
  /// fit ends the request as cut.
  std::span<std::byte> into{};
  bool patient = false; ///< the server may think for long before it answers
  long connect_ms = 10'000;
  long total_ms = 0; ///< limit of the whole request; 0: as long as bytes move
};

struct HttpReply {
  int status = 0; ///< 0: there was no whole answer, and `trouble` says why
  Headers headers{};
  std::string body{};
  size_t received = 0;   ///< bytes in `into`
  std::string trouble{}; ///< "could not connect to server"
  bool hopeless = false; ///< trouble that another try meets again, a certificate's

  [[nodiscard]] bool ok() const { return status / 100 == 2; }

  /// A header's value; empty if there is none.
  [[nodiscard]] std::string header(std::string_view name) const;
};

/// Thread:  any
class Http {
public:
  /// `ca_file` holds the certificates that are trusted; empty: the system's. A connection on which
  /// fewer than 1 KiB/s move for `stall_seconds` counts as cut.
  Http(std::string ca_file, long stall_seconds);
  ~Http();
  Http(const Http&) = delete;
  Http& operator=(const Http&) = delete;

  [[nodiscard]] HttpReply ask(const HttpRequest& request);

private:
  using Handle = std::unique_ptr<CURL, void (*)(CURL*)>;
  [[nodiscard]] Handle take();
  void give_back(Handle handle);

  std::string ca_file_;
  long stall_seconds_;
  std::mutex mutex_;
  std::vector<Handle> idle_; ///< each with the connections that it has open
};

} // namespace s3
