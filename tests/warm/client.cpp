// The program `megahost` as tests see it where a server has LibTorch loaded: the server starts it in
// this folder, on these files and with these variables; signals are passed on, and it ends as the
// started one does. Without a server it becomes the program itself.

#include "request.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace {

/// A socket that the server hears, or -1.
int connected() {
  const char* path = std::getenv("MEGAHOST_WARM");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path == nullptr || std::string(path).size() >= sizeof(address.sun_path)) {
    return -1;
  }
  std::snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
  const int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto* any = reinterpret_cast<const sockaddr*>(&address);
  return connect(server, any, sizeof(address)) == 0 ? server : -1;
}

/// The files that this process was started with: the standard ones, empty where they are closed, and
/// those that a launcher hands to its ranks.
void add_files(warm::Request& ret_request) {
  ret_request.descriptors.push_back(open(".", O_PATH | O_CLOEXEC));
  for (const int file : {0, 1, 2}) {
    const bool closed = fcntl(file, F_GETFD) < 0;
    ret_request.numbers.push_back(file);
    ret_request.descriptors.push_back(closed ? open("/dev/null", O_RDWR | O_CLOEXEC) : file);
  }
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int file = std::stoi(entry.path().filename());
    if (file > 2 && (fcntl(file, F_GETFD) & FD_CLOEXEC) == 0) {
      ret_request.numbers.push_back(file);
      ret_request.descriptors.push_back(file);
    }
  }
}

[[noreturn]] void end_as(int status) {
  if (WIFSIGNALED(status)) {
    std::signal(WTERMSIG(status), SIG_DFL);
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_UNBLOCK, &all, nullptr);
    std::raise(WTERMSIG(status));
  }
  std::_Exit(WEXITSTATUS(status));
}

} // namespace

int main(int, char** argv) {
  const int server = connected();
  if (server < 0) {
    const char* program = std::getenv("MEGAHOST_WARM_PROGRAM");
    execv(program == nullptr ? "megahost" : program, argv);
    std::perror("no server, and no program");
    return 1;
  }
  sigset_t passed;
  sigemptyset(&passed);
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH}) {
    sigaddset(&passed, number);
  }
  sigprocmask(SIG_BLOCK, &passed, nullptr);
  warm::Request request;
  for (char** word = argv; *word != nullptr; ++word) {
    request.words.emplace_back(*word);
  }
  for (char** variable = environ; *variable != nullptr; ++variable) {
    request.variables.emplace_back(*variable);
  }
  add_files(request);
  if (!warm::send_request(server, request)) {
    std::perror("the server of starts");
    return 1;
  }
  for (const int file : request.descriptors) {
    close(file); // who reads from the started one sees its end
  }
  pollfd ready[2] = {{server, POLLIN, 0}, {signalfd(-1, &passed, SFD_CLOEXEC), POLLIN, 0}};
  for (;;) {
    if (poll(ready, 2, -1) < 0) {
      continue;
    }
    signalfd_siginfo told{};
    if ((ready[1].revents & POLLIN) != 0 &&
        read(ready[1].fd, &told, sizeof(told)) == sizeof(told)) {
      const auto number = static_cast<char>(told.ssi_signo);
      (void)warm::send_all(server, &number, 1);
    }
    if (ready[0].revents != 0) {
      int status = 0;
      if (!warm::receive_all(server, &status, sizeof(status))) {
        return 1;
      }
      end_as(status);
    }
  }
}
