#include "core/runs/page_server.hpp"

#include "megahost/error.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

namespace mh {

namespace {

constexpr const char* kLoopback = "127.0.0.1";
constexpr size_t kLongest = 8192; // bytes of a request's head
constexpr int kPatience = 2;      // seconds for a reader to ask, and to take each piece

class Connection {
public:
  explicit Connection(int descriptor)
      : descriptor_(descriptor) {
    const timeval patience{.tv_sec = kPatience, .tv_usec = 0};
    setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  }

  ~Connection() { close(descriptor_); }

  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// The head of a request; empty if none comes.
  [[nodiscard]] std::string head() const {
    std::string text;
    std::array<char, 1024> piece{};
    while (text.find("\r\n\r\n") == std::string::npos) {
      const ssize_t came = recv(descriptor_, piece.data(), piece.size(), 0);
      if (came <= 0 || text.size() + static_cast<size_t>(came) > kLongest) {
        return "";
      }
      text.append(piece.data(), static_cast<size_t>(came));
    }
    return text;
  }

  void answer(const char* status, const ServedPage& page, bool with_body) const {
    const std::string head = std::string("HTTP/1.1 ") + status + "\r\nContent-Type: " + page.type +
                             "\r\nContent-Length: " + std::to_string(page.body.size()) +
                             "\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n";
    send_all(head + (with_body ? page.body : ""));
  }

private:
  // Not by write(2): a reader that has gone would end the program by SIGPIPE.
  void send_all(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) {
        return;
      }
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }

  int descriptor_;
};

/// The value of a header, in lower case and without blanks around it; empty if there is none.
std::string header(const std::string& head, std::string_view name) {
  std::string lower(head.size(), ' ');
  std::transform(head.begin(), head.end(), lower.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  const auto at = lower.find("\r\n" + std::string(name) + ":");
  if (at == std::string::npos) {
    return "";
  }
  const auto begin = lower.find_first_not_of(" \t", at + name.size() + 3);
  const auto end = lower.find("\r\n", at + 2);
  return begin < end ? lower.substr(begin, lower.find_last_not_of(" \t", end - 1) + 1 - begin) : "";
}

bool is_of_this_machine(const std::string& host) {
  const auto colon = host.rfind(':');
  const bool has_port = colon != std::string::npos && host.find(']', colon) == std::string::npos;
  const std::string name = has_port ? host.substr(0, colon) : host;
  return name.empty() || name == "localhost" || name == kLoopback || name == "[::1]";
}

ServedPage plain(const std::string& text) {
  return {"text/plain; charset=utf-8", text + "\n"};
}

[[noreturn]] void refuse_place(const std::string& where) {
  throw Error(
      "--http " + where + " is no place to listen at",
      "give a port of this machine, such as 8080, or ADDRESS:PORT with an IPv4 address; 0.0.0.0 "
      "lets other machines read it"
  );
}

} // namespace

PageServer::PageServer(const std::string& where)
    : address_(kLoopback) {
  std::string_view port = where;
  if (const auto colon = where.rfind(':'); colon != std::string::npos) {
    address_ = where.substr(0, colon);
    port.remove_prefix(colon + 1);
  }
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), port_);
  sockaddr_in place{};
  place.sin_family = AF_INET;
  if (error != std::errc() || end != port.data() + port.size() || port_ < 0 || port_ > 65535 ||
      inet_pton(AF_INET, address_.c_str(), &place.sin_addr) != 1) {
    refuse_place(where);
  }
  place.sin_port = htons(static_cast<uint16_t>(port_));
  socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  auto* address = reinterpret_cast<sockaddr*>(&place);
  socklen_t size = sizeof place;
  if (socket_ < 0 || bind(socket_, address, size) != 0 || listen(socket_, 16) != 0 ||
      getsockname(socket_, address, &size) != 0) {
    const std::string why = std::strerror(errno);
    close(socket_);
    throw Error(
        "cannot listen at " + address_ + ":" + std::to_string(port_) + ": " + why,
        "choose another port; --http 0 takes a free one"
    );
  }
  port_ = ntohs(place.sin_port);
}

PageServer::~PageServer() {
  close(socket_);
}

std::string PageServer::place() const {
  return address_ + ":" + std::to_string(port_);
}

bool PageServer::serve(const std::function<ServedPage(const std::string& path)>& page) {
  const int descriptor = accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
  if (descriptor < 0) {
    return errno != EINTR;
  }
  const Connection reader(descriptor);
  const std::string head = reader.head();
  const auto method = head.find(' ');
  const auto target = method == std::string::npos ? method : head.find(' ', method + 1);
  if (target == std::string::npos || head.find("HTTP/1.", target) != target + 1) {
    return true;
  }
  const std::string word = head.substr(0, method);
  if (word != "GET" && word != "HEAD") {
    reader.answer("405 Method Not Allowed", plain("GET and HEAD are answered"), true);
  } else if (address_ == kLoopback && !is_of_this_machine(header(head, "host"))) {
    reader.answer("403 Forbidden", plain("this server answers as localhost only"), true);
  } else {
    const std::string path = head.substr(method + 1, target - method - 1);
    const ServedPage found = page(path.substr(0, path.find('?')));
    const bool there = !found.type.empty();
    reader.answer(
        there ? "200 OK" : "404 Not Found",
        there ? found : plain("there is no such page"),
        word == "GET"
    );
  }
  return true;
}

} // namespace mh
