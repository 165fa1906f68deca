#include "core/mesh/spawn.hpp"

#include "core/base/seconds.hpp"
#include "core/draw/report.hpp"
#include "core/mesh/collective_log.hpp"
#include "core/mesh/rank_reports.hpp"
#include "megahost/error.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

extern char** environ;

namespace mh {

namespace {

// Ranks that hear of a failure end by themselves; those that do not are told, then made to.
constexpr std::chrono::seconds kUntilTold{2}, kUntilKilled{7};
constexpr int kPollMilliseconds = 50;
constexpr std::chrono::milliseconds kLongestLook{500};

[[noreturn]] void refuse(const std::string& what) {
  throw Error(
      "cannot start the ranks: " + what + ": " + std::strerror(errno), "", exit_code::other
  );
}

/// The address where ranks meet, and the socket that waits there if it was opened here.
struct MeetingPoint {
  std::string address;
  int port = 0;
  int socket = -1;
};

/// On the loopback.
MeetingPoint open_store_socket() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (fd < 0 || bind(fd, generic, length) != 0 || listen(fd, SOMAXCONN) != 0 ||
      getsockname(fd, generic, &length) != 0) {
    refuse("no socket on the loopback");
  }
  return {"127.0.0.1", ntohs(address.sin_port), fd};
}

constexpr const char* kHanded = "MEGAHOST_HANDED_FD";

/// A file in memory that holds these bytes.
int memory_file(const std::string& bytes) {
  const int fd = memfd_create("megahost-handed", 0); // ranks inherit it
  for (size_t done = 0; fd >= 0 && done < bytes.size();) {
    const ssize_t written = write(fd, bytes.data() + done, bytes.size() - done);
    if (written <= 0) {
      refuse("no memory for what they are handed");
    }
    done += static_cast<size_t>(written);
  }
  if (fd < 0) {
    refuse("no file in memory");
  }
  return fd;
}

/// `local`: the rank's number on this machine.
std::vector<std::string> environment_of(
    int64_t local, const StartedRanks& ranks, const MeetingPoint& meeting, int error, int handed
) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    variables.emplace_back(*variable);
  }
  const auto set = [&](const std::string& name, const std::string& value) {
    variables.push_back(name + "=" + value);
  };
  set("MEGAHOST_RANK", std::to_string(ranks.first + local));
  set("MEGAHOST_WORLD_SIZE", std::to_string(ranks.world));
  set("MEGAHOST_LOCAL_RANK", std::to_string(local));
  set("MEGAHOST_LOCAL_WORLD_SIZE", std::to_string(ranks.count));
  set("MEGAHOST_MASTER_ADDR", meeting.address);
  set("MEGAHOST_MASTER_PORT", std::to_string(meeting.port));
  set("MEGAHOST_ERROR_FD", std::to_string(error));
  if (handed >= 0) {
    set(kHanded, std::to_string(handed));
  }
  if (local == 0 && meeting.socket >= 0) {
    set("MEGAHOST_STORE_FD", std::to_string(meeting.socket));
  }
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    const int64_t cores = std::thread::hardware_concurrency();
    set("OMP_NUM_THREADS", std::to_string(std::max<int64_t>(1, cores / ranks.count)));
  }
  return variables;
}

struct Child {
  pid_t pid = 0;
  int errors = -1;      // where it says why it failed
  std::string report;   // what it said
  bool told = false;    // to end
  bool stopped = false; // by a signal, until SIGCONT
  std::optional<int> status;

  [[nodiscard]] bool failed() const {
    return status &&
           (WIFSIGNALED(*status) || (WEXITSTATUS(*status) != 0 && WEXITSTATUS(*status) < 128));
  }
};

Child start(int64_t local, const StartedRanks& ranks, const MeetingPoint& meeting, int handed) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    refuse("no pipe");
  }
  fcntl(ends[1], F_SETFD, 0);
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  if (meeting.socket >= 0) {
    fcntl(meeting.socket, F_SETFD, local == 0 ? 0 : FD_CLOEXEC);
  }
  auto words = ranks.words;
  auto variables = environment_of(local, ranks, meeting, ends[1], handed);
  Child child;
  child.errors = ends[0];
  errno = posix_spawn(
      &child.pid,
      "/proc/self/exe",
      nullptr,
      nullptr,
      exec_words(words).data(),
      exec_words(variables).data()
  );
  if (errno != 0) {
    refuse("no process for rank " + std::to_string(ranks.first + local));
  }
  close(ends[1]);
  return child;
}

void listen_to(Child& child) {
  char bytes[4096];
  for (ssize_t got = 0; (got = read(child.errors, bytes, sizeof bytes)) > 0;) {
    child.report.append(bytes, static_cast<size_t>(got));
  }
}

/// The signal that is yet to be forwarded to the ranks; 0: none.
volatile std::sig_atomic_t g_told = 0;

class Watch {
public:
  Watch(std::vector<Child> children, const StartedRanks& ranks, double hang_after)
      : children_(std::move(children))
      , ranks_(ranks)
      , hang_after_(hang_after) {
    g_told = 0;

    struct sigaction action {};

    action.sa_handler = SIG_IGN; // a terminal's Ctrl-C reaches the ranks, too: they save and end
    sigaction(SIGINT, &action, &former_int_);
    action.sa_handler = [](int signal) { g_told = signal; };
    sigaction(SIGTERM, &action, &former_term_);
    sigaction(SIGUSR1, &action, &former_usr1_);
  }

  ~Watch() {
    sigaction(SIGINT, &former_int_, nullptr);
    sigaction(SIGTERM, &former_term_, nullptr);
    sigaction(SIGUSR1, &former_usr1_, nullptr);
  }

  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  RanksEnded wait() {
    while (std::any_of(children_.begin(), children_.end(), [](const Child& child) {
      return !child.status;
    })) {
      if (g_told != 0) {
        tell(std::exchange(g_told, 0));
      }
      look();
      name_the_stopped();
      end_the_others();
    }
    return verdict();
  }

private:
  void tell(int signal) {
    for (Child& child : children_) {
      if (!child.status) {
        child.told = true;
        kill(child.pid, signal);
      }
    }
  }

  void look() {
    std::vector<pollfd> pipes;
    for (const Child& child : children_) {
      if (!child.status) {
        pipes.push_back({child.errors, POLLIN, 0});
      }
    }
    poll(pipes.data(), pipes.size(), kPollMilliseconds);
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      Child& child = children_[rank];
      int status = 0;
      listen_to(child);
      if (child.status ||
          waitpid(child.pid, &status, WNOHANG | WUNTRACED | WCONTINUED) != child.pid) {
        continue;
      }
      child.stopped = WIFSTOPPED(status);
      if (WIFEXITED(status) || WIFSIGNALED(status)) {
        child.status = status;
        listen_to(child);
        if (child.failed() && !first_) {
          failed_at_ = Clock::now();
        }
        // The cause, not the consequence: but a rank that was ended from here is neither.
        const bool better =
            first_ && !told_ && of_communication(children_[*first_]) && !of_communication(child);
        if (child.failed() && (!first_ || better)) {
          first_ = rank;
        }
      }
    }
  }

  /// Rank 0 has the store, and rank 1 speaks for it.
  void name_the_stopped() {
    const size_t speakers = std::min<size_t>(2, children_.size());
    const bool silent = std::all_of(
        children_.begin(),
        children_.begin() + static_cast<std::ptrdiff_t>(speakers),
        [](const Child& child) { return child.stopped; }
    );
    const auto now = Clock::now();
    // If this process is stopped with them, as by a terminal's Ctrl-Z, that time does not count.
    silent_ = silent ? silent_ + std::min<Clock::duration>(now - looked_, kLongestLook)
                     : Clock::duration::zero();
    looked_ = now;
    const bool say = hang_after_ > 0 && silent_ >= std::chrono::duration<double>(hang_after_);
    if (say && !named_) {
      std::vector<int64_t> ranks;
      std::string processes;
      for (size_t rank = 0; rank < children_.size(); ++rank) {
        if (children_[rank].stopped) {
          ranks.push_back(ranks_.first + static_cast<int64_t>(rank));
          processes += " " + std::to_string(children_[rank].pid);
        }
      }
      warn(
          "no progress: " + ranks_text(ranks) + (ranks.size() == 1 ? " is" : " are") +
          " stopped by a signal; kill -CONT" + processes + " lets " +
          (ranks.size() == 1 ? "it" : "them") + " go on"
      );
    } else if (named_ && !silent) {
      warn("the stopped ranks go on");
    }
    named_ = say;
  }

  void end_the_others() {
    if (!first_) {
      return;
    }
    const auto since = Clock::now() - failed_at_;
    if (since > kUntilTold && std::exchange(told_, true) == false) {
      tell(SIGTERM);
      for (const Child& child : children_) {
        if (!child.status && child.stopped) { // it hears nothing else
          kill(child.pid, SIGKILL);
        }
      }
    }
    if (since > kUntilKilled) {
      tell(SIGKILL);
    }
  }

  /// A rank that only noticed that another one had failed.
  static bool of_communication(const Child& child) {
    return !child.status ||
           (WIFEXITED(*child.status) && WEXITSTATUS(*child.status) == exit_code::communication);
  }

  [[nodiscard]] RanksEnded verdict() const {
    if (!first_) {
      const auto stopped = std::find_if(children_.begin(), children_.end(), [](const Child& child) {
        return WEXITSTATUS(*child.status) != 0;
      });
      return {.status = stopped == children_.end() ? 0 : WEXITSTATUS(*stopped->status)};
    }
    std::vector<EndedRank> ranks;
    for (const Child& child : children_) {
      ranks.push_back({*child.status, child.report, child.told});
    }
    const Error failure = explain_failure(ranks, *first_, ranks_.first, ranks_.world);
    return {.status = failure.exit_code(), .failure = failure};
  }

  std::vector<Child> children_;
  StartedRanks ranks_;
  double hang_after_; // seconds; 0: never
  Clock::time_point looked_ = Clock::now();
  Clock::duration silent_{}; // how long no rank was there that could name those that are stopped
  bool named_ = false;
  std::optional<size_t> first_; // that failed
  Clock::time_point failed_at_;
  bool told_ = false;

  struct sigaction former_int_ {
  }, former_term_{}, former_usr1_{};
};

} // namespace

std::vector<char*> exec_words(std::vector<std::string>& words) {
  std::vector<char*> result;
  for (std::string& word : words) {
    result.push_back(word.data());
  }
  result.push_back(nullptr);
  return result;
}

RanksEnded run_ranks(const StartedRanks& ranks, double hang_after, const std::string& handed) {
  const bool here = ranks.count == ranks.world;
  const MeetingPoint meeting =
      here ? open_store_socket() : MeetingPoint{ranks.master_address, ranks.master_port, -1};
  const int memory = handed.empty() ? -1 : memory_file(handed);
  std::vector<Child> children;
  for (int64_t local = 0; local < ranks.count; ++local) {
    children.push_back(start(local, ranks, meeting, memory));
  }
  if (here) {
    close(meeting.socket);
  }
  if (memory >= 0) {
    close(memory);
  }
  return Watch(std::move(children), ranks, hang_after).wait();
}

int run_as_ranks(const StartedRanks& ranks, double hang_after, const std::string& handed) {
  const auto ended = run_ranks(ranks, hang_after, handed);
  return ended.failure ? report(*ended.failure) : ended.status;
}

std::string handed_bytes() {
  const char* fd = std::getenv(kHanded);
  std::string bytes;
  if (fd == nullptr) {
    return bytes;
  }
  for (char block[4096];;) {
    const ssize_t got = pread(std::atoi(fd), block, sizeof block, static_cast<off_t>(bytes.size()));
    if (got < 0) {
      throw Error(
          "a rank cannot read the recipe that it was handed: " + std::string(std::strerror(errno))
      );
    }
    if (got == 0) {
      return bytes;
    }
    bytes.append(block, static_cast<size_t>(got));
  }
}

bool is_spawned_rank() {
  return std::getenv("MEGAHOST_ERROR_FD") != nullptr;
}

} // namespace mh
