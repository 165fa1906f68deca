#include "core/plugin/child.hpp"

#include "core/base/write_all.hpp"
#include "megahost/error.hpp"

#include <c10/util/Exception.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>

namespace mh {

namespace {

constexpr size_t kPrinted = 2000; // bytes that are kept of the outputs
constexpr char kWhole = '\x04';   // ends what the work returned
constexpr char kThrown = '\x15';  // ends the words of what it threw

struct Pipe {
  int read = -1, write = -1;

  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
      throw Error(
          std::string("no pipe for a child process: ") + std::strerror(errno), "", exit_code::other
      );
    }
    read = ends[0];
    write = ends[1];
  }

  ~Pipe() {
    close_end(read);
    close_end(write);
  }

  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  static void close_end(int& end) {
    if (end >= 0) {
      close(end);
    }
    end = -1;
  }
};

[[noreturn]] void
run_child(const std::function<std::string()>& work, const Pipe& result, const Pipe& outputs) {
  unsetenv("MEGAHOST_ERROR_FD"); // what it says is for this process, not for who started the ranks
  unsetenv("TORCHELASTIC_ERROR_FILE");
  dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
  dup2(outputs.write, STDOUT_FILENO);
  dup2(outputs.write, STDERR_FILENO);
  try {
    const std::string text = work();
    std::fflush(nullptr);
    _exit(write_all(result.write, text + kWhole) ? 0 : 1);
  } catch (const c10::Error& error) {
    write_all(result.write, error.what_without_backtrace() + std::string(1, kThrown));
  } catch (const std::exception& error) { // this copy of the parent's stack must not unwind
    write_all(result.write, error.what() + std::string(1, kThrown));
  } catch (...) {
    write_all(result.write, std::string("an exception that is no std::exception") + kThrown);
  }
  std::fflush(nullptr);
  _exit(1);
}

/// Reads some bytes; false at the end.
bool read_some(int in, std::string& ret_text) {
  char buffer[4096];
  const ssize_t count = read(in, buffer, sizeof(buffer));
  if (count > 0) {
    ret_text.append(buffer, static_cast<size_t>(count));
  }
  return count > 0 || (count < 0 && errno == EINTR);
}

/// Reads both pipes until the child is done with the first; false if that takes too long.
bool read_both(Pipe& result, Pipe& outputs, std::chrono::seconds patience, ChildResult& ret) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now()
    );
    std::array<pollfd, 2> ready{{{result.read, POLLIN, 0}, {outputs.read, POLLIN, 0}}};
    const int polled = poll(ready.data(), ready.size(), std::max<int>(0, int(left.count())));
    if (polled == 0) {
      return false;
    }
    if (ready[1].revents != 0 && !read_some(outputs.read, ret.printed)) {
      Pipe::close_end(outputs.read); // poll passes over it from now on
    }
    if (ready[0].revents != 0 && !read_some(result.read, ret.text)) {
      return true;
    }
    if (ret.printed.size() > 2 * kPrinted) {
      ret.printed.erase(0, ret.printed.size() - kPrinted);
    }
  }
}

} // namespace

std::string ChildResult::ended_and_printed() const {
  const std::string first = printed.substr(0, printed.find('\n'));
  return ended + (first.empty() ? "" : " (it printed: " + first + ")");
}

ChildResult in_child(const std::function<std::string()>& work, std::chrono::seconds patience) {
  Pipe result, outputs;
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid < 0) {
    throw Error(std::string("no child process: ") + std::strerror(errno), "", exit_code::other);
  }
  if (pid == 0) {
    run_child(work, result, outputs);
  }
  Pipe::close_end(result.write);
  Pipe::close_end(outputs.write);
  ChildResult child;
  const bool in_time = read_both(result, outputs, patience, child);
  if (!in_time) {
    kill(pid, SIGKILL);
    child.ended = "still running after " + std::to_string(patience.count()) + " seconds";
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  const bool whole = child.text.ends_with(kWhole);
  if (whole) {
    child.text.pop_back();
    child.ended = "";
  } else if (in_time && child.text.ends_with(kThrown)) {
    child.text.pop_back();
    child.ended = std::move(child.text);
  } else if (in_time && WIFSIGNALED(status)) {
    child.ended = strsignal(WTERMSIG(status));
  } else if (in_time) {
    child.ended = "it ended its process with status " + std::to_string(WEXITSTATUS(status));
  }
  child.text = whole ? child.text : "";
  return child;
}

} // namespace mh
