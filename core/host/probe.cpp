#include "core/host/open.hpp"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>

namespace mh {

namespace {

constexpr std::chrono::seconds kPatience{20};

nlohmann::json report(const std::filesystem::path& file) {
  try {
    const OpenedPlugin opened = open_plugin(file);
    nlohmann::json offers = nlohmann::json::array();
    for (const auto& entry : opened.registry.entries()) {
      offers.push_back({static_cast<int>(entry.kind), entry.name, entry.summary});
    }
    const PluginInfo& info = opened.info;
    return {
        {"info",
         {info.id, info.version, info.license, info.summary, info.abi_tag, info.built_with}},
        {"offers", offers}};
  } catch (const std::exception& error) {
    return {{"skipped", error.what()}};
  }
}

[[noreturn]] void child(const std::filesystem::path& file, int out) {
  const int null = open("/dev/null", O_RDWR);
  dup2(null, STDOUT_FILENO);
  dup2(null, STDERR_FILENO);
  const std::string text =
      report(file).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = write(out, text.data() + written, text.size() - written);
    if (count <= 0) {
      break;
    }
    written += static_cast<size_t>(count);
  }
  _exit(0);
}

/// Everything the child writes until it ends; false if it takes longer than kPatience.
bool read_all(int in, std::string& ret_text) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  char buffer[4096];
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now()
    );
    pollfd ready{in, POLLIN, 0};
    const int polled = poll(&ready, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
    if (polled < 0 && errno == EINTR) {
      continue;
    }
    if (polled <= 0) {
      return false;
    }
    const ssize_t count = read(in, buffer, sizeof(buffer));
    if (count <= 0) {
      return true;
    }
    ret_text.append(buffer, static_cast<size_t>(count));
  }
}

} // namespace

FoundPlugin probe_plugin(const std::filesystem::path& file) {
  FoundPlugin found;
  found.plugin.file = file;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw Error(
        std::string("no pipe for a child process: ") + std::strerror(errno), "", exit_code::other
    );
  }
  const pid_t pid = fork();
  if (pid < 0) {
    close(ends[0]);
    close(ends[1]);
    throw Error(std::string("no child process: ") + std::strerror(errno), "", exit_code::other);
  }
  if (pid == 0) {
    close(ends[0]);
    child(file, ends[1]);
  }
  close(ends[1]);
  std::string text;
  const bool in_time = read_all(ends[0], text);
  close(ends[0]);
  if (!in_time) {
    kill(pid, SIGKILL);
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!in_time) {
    found.skipped = file.string() + " was still being opened after " +
                    std::to_string(kPatience.count()) + " seconds";
  } else if (json.is_discarded()) {
    found.skipped = file.string() + " ended the process that opened it" +
                    (WIFSIGNALED(status) ? std::string(" (") + strsignal(WTERMSIG(status)) + ")"
                                         : std::string());
  } else if (json.contains("skipped")) {
    found.skipped = json["skipped"];
  } else {
    const auto& info = json["info"];
    found.plugin = {info[0], info[1], info[2], info[3], info[4], info[5], file};
    for (const auto& offer : json["offers"]) {
      found.offers.push_back({static_cast<Kind>(offer[0].get<int>()), offer[1], offer[2]});
    }
  }
  return found;
}

} // namespace mh
