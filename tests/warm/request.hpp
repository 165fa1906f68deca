#pragma once
/// The message by which a start of the program is asked for: its words, its environment, and its
/// folder and files as descriptors next to them.

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace warm {

/// The most that the kernel takes along with one message.
constexpr size_t kMostDescriptors = 253;

struct Request {
  std::vector<std::string> words, variables;
  std::vector<int> numbers;     ///< its open files: 0, 1, 2 and others
  std::vector<int> descriptors; ///< its folder, then a file for each of these numbers
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
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  uint32_t size = 0;
  iovec part{&size, sizeof(size)};
  msghdr message{};

  explicit Carried(size_t descriptors) {
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
  }
};

/// A list as text: how many, then each with a zero behind it.
inline void add(std::string& ret_text, const std::vector<std::string>& list) {
  ret_text += std::to_string(list.size()) + '\0';
  for (const std::string& one : list) {
    ret_text.append(one.c_str(), one.size() + 1);
  }
}

inline std::vector<std::string> take(const char*& ret_at) {
  std::vector<std::string> list(std::stoul(ret_at));
  ret_at += std::strlen(ret_at) + 1;
  for (std::string& one : list) {
    one = ret_at;
    ret_at += one.size() + 1;
  }
  return list;
}

inline bool send_request(int socket, const Request& request) {
  std::string text;
  std::vector<std::string> numbers;
  for (const int number : request.numbers) {
    numbers.push_back(std::to_string(number));
  }
  add(text, request.words);
  add(text, request.variables);
  add(text, numbers);
  const size_t bytes = request.descriptors.size() * sizeof(int);
  if (request.descriptors.size() > kMostDescriptors) {
    return false;
  }
  Carried carried(request.descriptors.size());
  carried.size = static_cast<uint32_t>(text.size());
  cmsghdr* header = CMSG_FIRSTHDR(&carried.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(bytes);
  std::memcpy(CMSG_DATA(header), request.descriptors.data(), bytes);
  return sendmsg(socket, &carried.message, MSG_NOSIGNAL) == sizeof(carried.size) &&
         send_all(socket, text.data(), text.size());
}

inline bool receive_request(int socket, Request& ret_request) {
  Carried carried(kMostDescriptors);
  if (recvmsg(socket, &carried.message, MSG_CMSG_CLOEXEC) != sizeof(carried.size)) {
    return false;
  }
  const cmsghdr* header = CMSG_FIRSTHDR(&carried.message);
  if (header == nullptr) {
    return false;
  }
  const size_t bytes = header->cmsg_len - CMSG_LEN(0);
  ret_request.descriptors.resize(bytes / sizeof(int));
  std::memcpy(ret_request.descriptors.data(), CMSG_DATA(header), bytes);
  std::string text(carried.size, '\0');
  if (!receive_all(socket, text.data(), text.size())) {
    return false;
  }
  const char* at = text.c_str();
  ret_request.words = take(at);
  ret_request.variables = take(at);
  for (const std::string& number : take(at)) {
    ret_request.numbers.push_back(std::stoi(number));
  }
  return true;
}

} // namespace warm
