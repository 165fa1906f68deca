// Starts of the program that need not load LibTorch each time, which takes a quarter of a second. By
// LD_PRELOAD it runs before the program's main: it loads libmegahost.so once, and then makes a copy
// of itself for each start that a client asks for, which goes on with that main. It ends with its
// standard input.

#include "core/config.hpp"
#include "request.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <vector>

namespace {

using Main = int (*)(int, char**, char**);

Main program_main = nullptr;

struct Started {
  pid_t pid;
  int ended;  ///< a descriptor that can be read when it has
  int client; ///< -1: it has gone
};

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::_Exit(1);
}

/// The texts in the form of main's arguments; they stay for the rest of the process.
char** pointers(const std::vector<std::string>& texts) {
  auto* all = new std::vector<char*>;
  for (const std::string& text : texts) {
    all->push_back(strdup(text.c_str()));
  }
  all->push_back(nullptr);
  return all->data();
}

/// Opens the files of a start under its own numbers, whatever is open under them.
void place(const warm::Request& request) {
  constexpr int kBeyond = 600; // no number of a start's
  std::vector<int> aside;
  for (const int descriptor : request.descriptors) {
    aside.push_back(fcntl(descriptor, F_DUPFD_CLOEXEC, kBeyond));
    close(descriptor);
  }
  for (size_t i = 0; i < request.numbers.size(); ++i) {
    if (dup2(aside[i + 1], request.numbers[i]) < 0) {
      fail("a file of a start");
    }
  }
  if (fchdir(aside[0]) != 0) {
    fail("the folder of a start");
  }
  for (const int descriptor : aside) {
    close(descriptor);
  }
}

/// Threads as the start's variables say: the runtime has read the server's.
void set_threads() {
  const char* threads = std::getenv("OMP_NUM_THREADS");
  using Set = void (*)(int);
  const auto set = reinterpret_cast<Set>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (threads != nullptr && set != nullptr) {
    set(std::atoi(threads));
  }
}

/// Goes on as the program that the client asked for.
int become(const warm::Request& request) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  place(request);
  environ = pointers(request.variables);
  set_threads();
  return program_main(static_cast<int>(request.words.size()), pointers(request.words), environ);
}

/// Ranks that a start starts are started by this server, too: the client stands for the program.
/// It is known by the name that the tests' `megahost` has.
const char* in_place_of(const char* program) {
  const char* client = std::getenv("MEGAHOST");
  const bool warm = std::getenv("MEGAHOST_WARM") != nullptr && client != nullptr;
  return warm && std::string_view(program) == "/proc/self/exe" ? client : program;
}

/// The next of what is asked, or ends.
void wait_for_more(int listening, const std::vector<Started>& started, std::vector<pollfd>& ret) {
  ret = {{listening, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
  for (const Started& one : started) {
    ret.push_back({one.ended, POLLIN, 0});
    ret.push_back({one.client, POLLIN, 0});
  }
  while (poll(ret.data(), ret.size(), -1) < 0) {
  }
}

/// Passes a signal on, or ends what a client has left.
void hear(Started& one) {
  char number = 0;
  const bool said = recv(one.client, &number, 1, 0) == 1;
  kill(one.pid, said ? number : SIGKILL);
  if (!said) {
    close(one.client);
    one.client = -1;
  }
}

void end(const Started& one) {
  int status = 0;
  waitpid(one.pid, &status, 0);
  if (one.client >= 0) {
    (void)warm::send_all(one.client, &status, sizeof(status));
    close(one.client);
  }
  close(one.ended);
}

int serve(int listening) {
  const auto here = std::filesystem::canonical("/proc/self/exe").parent_path();
  auto library = here / "libmegahost.so"; // where a build has it
  if (!std::filesystem::exists(library)) {
    library = here / MH_LIB_FROM_BIN / "libmegahost.so";
  }
  if (dlopen(library.c_str(), RTLD_LAZY | RTLD_GLOBAL) == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  const std::filesystem::directory_iterator threads("/proc/self/task");
  if (std::distance(begin(threads), end(threads)) != 1) {
    std::fprintf(stderr, "loading made threads, which a copy of the process would lack\n");
    return 1;
  }
  std::vector<Started> started;
  std::vector<pollfd> ready;
  for (;;) {
    wait_for_more(listening, started, ready);
    if (ready[1].revents != 0) {
      return 0;
    }
    for (size_t i = 0; i < started.size(); ++i) {
      if (ready[3 + 2 * i].revents != 0) {
        hear(started[i]);
      }
      if (ready[2 + 2 * i].revents != 0) {
        end(started[i]);
        started[i].pid = 0;
      }
    }
    std::erase_if(started, [](const Started& one) { return one.pid == 0; });
    if (ready[0].revents == 0) {
      continue;
    }
    const int client = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    warm::Request request;
    if (client < 0 || !warm::receive_request(client, request)) {
      close(client);
      continue;
    }
    const pid_t pid = fork();
    if (pid == 0) {
      for (const Started& other : started) {
        close(other.ended);
        close(other.client);
      }
      close(listening);
      close(client);
      return become(request);
    }
    for (const int descriptor : request.descriptors) {
      close(descriptor);
    }
    if (pid < 0) {
      fail("fork");
    }
    started.push_back({pid, static_cast<int>(syscall(SYS_pidfd_open, pid, 0)), client});
  }
}

int main_or_serve(int argc, char** argv, char** variables) {
  const char* listening = std::getenv("MEGAHOST_WARM_LISTENING");
  return listening == nullptr ? program_main(argc, argv, variables) : serve(std::atoi(listening));
}

} // namespace

extern "C" __attribute__((visibility("default"))) int posix_spawn(
    pid_t* pid,
    const char* program,
    const posix_spawn_file_actions_t* actions,
    const posix_spawnattr_t* attributes,
    char* const words[],
    char* const variables[]
) noexcept {
  static const auto real =
      reinterpret_cast<decltype(&posix_spawn)>(dlsym(RTLD_NEXT, "posix_spawn"));
  return real(pid, in_place_of(program), actions, attributes, words, variables);
}

extern "C" __attribute__((visibility("default"))) int __libc_start_main(
    Main own, int argc, char** argv, Main init, void (*fini)(), void (*linker_fini)(), void* stack
) {
  program_main = own;
  const auto real =
      reinterpret_cast<decltype(&__libc_start_main)>(dlsym(RTLD_NEXT, "__libc_start_main"));
  return real(main_or_serve, argc, argv, init, fini, linker_fini, stack);
}
