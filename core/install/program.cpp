#include "core/install/program.hpp"

#include "core/base/folders.hpp"
#include "core/base/seconds.hpp"
#include "core/base/text.hpp"
#include "megahost/error.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <deque>
#include <fstream>
#include <thread>

extern char** environ;

namespace mh {

namespace fs = std::filesystem;

namespace {

/// The words as exec wants them, a null pointer last.
std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> all;
  for (std::string& word : words) {
    all.push_back(word.data());
  }
  all.push_back(nullptr);
  return all;
}

/// This process's environment with some variables set.
std::vector<std::string>
environment_with(const std::vector<std::pair<std::string, std::string>>& variables) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const bool set = std::any_of(variables.begin(), variables.end(), [&](const auto& variable) {
      return text.starts_with(variable.first + "=");
    });
    if (!set) {
      all.push_back(text);
    }
  }
  for (const auto& [name, value] : variables) {
    all.push_back(name + "=" + value);
  }
  return all;
}

} // namespace

namespace {

/// Waits for a process, and ends it after `limit` seconds; 0: never.
int wait_for(pid_t pid, double limit) {
  constexpr auto kBetweenLooks = std::chrono::milliseconds(20);
  const auto start = Clock::now();
  int status = 0;
  while (true) {
    const pid_t ended = waitpid(pid, &status, limit > 0 ? WNOHANG : 0);
    if (ended == pid) {
      return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }
    if (ended == 0) {
      std::this_thread::sleep_for(kBetweenLooks);
      if (seconds_since(start) > limit) {
        kill(pid, SIGKILL);
      }
    }
  }
}

} // namespace

int run_program(std::vector<std::string> words, const ProgramOptions& options) {
  std::vector<std::string> environment = environment_with(options.variables);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  const int add = O_WRONLY | O_CREAT | O_APPEND;
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, options.log.c_str(), add, 0666);
  if (options.output.empty()) {
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  } else {
    posix_spawn_file_actions_addopen(
        &actions, STDOUT_FILENO, options.output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666
    );
  }
  pid_t pid = 0;
  const int failure = posix_spawnp(
      &pid,
      words.front().c_str(),
      &actions,
      nullptr,
      pointers(words).data(),
      pointers(environment).data()
  );
  posix_spawn_file_actions_destroy(&actions);
  if (failure != 0) {
    throw Error(
        words.front() + " cannot be started: " + std::strerror(failure), "", exit_code::other
    );
  }
  return wait_for(pid, options.limit);
}

fs::path helper_program(const char* name) {
  Dl_info own{};
  dladdr(reinterpret_cast<const void*>(&helper_program), &own);
  const fs::path folder = fs::weakly_canonical(own.dli_fname).parent_path();
  const fs::path installed = folder / "megahost" / name;
  return fs::exists(installed) ? installed : folder / name;
}

bool is_program(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    return access(name.c_str(), X_OK) == 0;
  }
  const auto folders = path_list("PATH");
  return std::any_of(folders.begin(), folders.end(), [&](const fs::path& folder) {
    return access((folder / name).c_str(), X_OK) == 0;
  });
}

std::string last_lines(const fs::path& log, size_t count) {
  std::ifstream stream(log);
  std::deque<std::string> lines;
  std::string first; // error
  size_t first_number = 0, number = 0;
  for (std::string line; std::getline(stream, line); ++number) {
    lines.push_back("  " + terminal_text(line));
    if (lines.size() > count) {
      lines.pop_front();
    }
    if (first.empty() &&
        (line.find("error: ") != std::string::npos || line.find("ERROR: ") != std::string::npos)) {
      first = lines.back();
      first_number = number;
    }
  }
  if (!first.empty() && first_number + lines.size() < number) {
    lines.push_front("  ...");
    lines.push_front(first);
  }
  return join({lines.begin(), lines.end()}, "\n");
}

} // namespace mh
