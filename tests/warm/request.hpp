#pragma once
/// The message by which a start of the program is asked for: its words and its environment, with its
/// folder and its three files as descriptors next to them.

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace warm {

/// The folder of the start, then its standard input, output and errors.
using Descriptors = std::array<int, 4>;

struct Request {
  std::vector<std::string> words, variables;
};

/// Whether all bytes went out, or came in.
inline bool send_all(int socket, const void* bytes, size_t size) {
  const auto* at = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t sent = send(socket, at, size, MSG_NOSIGNAL);
    if (sent <= 0) {
      return false;
    }
    at += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

inline bool receive_all(int socket, void* bytes, size_t size) {
  auto* at = static_cast<char*>(bytes);
  while (size > 0) {
    const ssize_t received = recv(socket, at, size, 0);
    if (received <= 0) {
      return false;
    }
    at += received;
    size -= static_cast<size_t>(received);
  }
  return true;
}

/// The buffer of a message that carries descriptors.
struct Carried {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(Descriptors))> control{};
  uint32_t size = 0;
  iovec part{&size, sizeof(size)};
  msghdr message{};

  Carried() {
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
  }
};

/// The number of words, then all of them and the variables, each with a zero behind it.
inline bool send_request(int socket, const Request& request, const Descriptors& descriptors) {
  std::string text = std::to_string(request.words.size());
  text.push_back('\0');
  for (const auto* list : {&request.words, &request.variables}) {
    for (const std::string& one : *list) {
      text.append(one.c_str(), one.size() + 1);
    }
  }
  Carried carried;
  carried.size = static_cast<uint32_t>(text.size());
  cmsghdr* header = CMSG_FIRSTHDR(&carried.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(Descriptors));
  std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof(Descriptors));
  return sendmsg(socket, &carried.message, MSG_NOSIGNAL) == sizeof(carried.size) &&
         send_all(socket, text.data(), text.size());
}

inline bool receive_request(int socket, Request& ret_request, Descriptors& ret_descriptors) {
  Carried carried;
  if (recvmsg(socket, &carried.message, MSG_CMSG_CLOEXEC) != sizeof(carried.size)) {
    return false;
  }
  const cmsghdr* header = CMSG_FIRSTHDR(&carried.message);
  if (header == nullptr || header->cmsg_len != CMSG_LEN(sizeof(Descriptors))) {
    return false;
  }
  std::memcpy(ret_descriptors.data(), CMSG_DATA(header), sizeof(Descriptors));
  std::string text(carried.size, '\0');
  if (!receive_all(socket, text.data(), text.size())) {
    return false;
  }
  std::vector<std::string> all;
  for (size_t at = 0; at < text.size(); at += all.back().size() + 1) {
    all.emplace_back(text.c_str() + at);
  }
  const auto words = all.begin() + 1 + std::stol(all.front());
  ret_request.words.assign(all.begin() + 1, words);
  ret_request.variables.assign(words, all.end());
  return true;
}

} // namespace warm
