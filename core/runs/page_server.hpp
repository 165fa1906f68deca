#pragma once
/// Pages for a browser on this machine, or for Prometheus: an HTTP server for a handful of readers,
/// one after the other.

#include <functional>
#include <string>

namespace mh {

struct ServedPage {
  std::string type; ///< "text/html; charset=utf-8"
  std::string body;
};

class PageServer {
public:
  /// `where` is "PORT", for readers of this machine only, or "ADDRESS:PORT"; port 0: any.
  ///
  /// Throws:  mh::Error if it is no such place, or the port is taken
  explicit PageServer(const std::string& where);
  ~PageServer();
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

  /// "127.0.0.1:8080".
  [[nodiscard]] std::string place() const;

  /// Waits for one reader and answers; false when a signal came first. `page` is asked for a path,
  /// such as "/", and answers with an empty type where there is no such page. Readers that dawdle
  /// and those that speak no HTTP are left. On the loopback a request that names another host is
  /// refused: a page of another site may have sent it.
  ///
  /// Source:  RFC 9112, of which it speaks GET and HEAD, a request for each connection
  bool serve(const std::function<ServedPage(const std::string& path)>& page);

private:
  std::string address_;
  int port_ = 0;
  int socket_ = -1;
};

} // namespace mh
