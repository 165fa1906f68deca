#include "core/mesh/rank_reports.hpp"

#include <nlohmann/json.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <sstream>

namespace mh {

namespace {

struct Said {
  bool started = false;
  std::optional<std::string> failure; ///< its sentence
  std::string hint;
  bool crashed = false; ///< the failure is a signal
};

Said read_lines(const std::string& lines) {
  Said said;
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) {
      continue;
    }
    said.started = said.started || json.value("started", false);
    if (json.contains("text")) {
      said.failure = json.value("text", "");
      said.hint = json.value("hint", "");
      said.crashed = json.value("crash", false);
    }
  }
  return said;
}

/// Whether this rank fared otherwise than one that failed with these words.
bool contradicts(const EndedRank& rank, const Said& failed) {
  const Said said = read_lines(rank.lines);
  if (said.failure) {
    return *said.failure != failed.failure;
  }
  const bool unheard = rank.told && !said.started && !failed.started;
  return !unheard;
}

/// Whether a signal ended all ranks with the same words, so that none of them is the cause.
bool ended_alike(const std::vector<EndedRank>& ranks, const EndedRank& first) {
  return std::all_of(ranks.begin(), ranks.end(), [&](const EndedRank& rank) {
    return !rank.told && WIFSIGNALED(rank.status) &&
           WTERMSIG(rank.status) == WTERMSIG(first.status) &&
           read_lines(rank.lines).failure == read_lines(first.lines).failure;
  });
}

} // namespace

void report_started() {
  if (const char* to = std::getenv("MEGAHOST_ERROR_FD")) {
    constexpr const char* kLine = "{\"started\":true}\n";
    [[maybe_unused]] const auto written = write(std::atoi(to), kLine, std::strlen(kLine));
  }
}

Error explain_failure(
    const std::vector<EndedRank>& ranks, size_t first, int64_t offset, int64_t world
) {
  const EndedRank& rank = ranks[first];
  const int64_t count = world > 0 ? world : static_cast<int64_t>(ranks.size());
  const std::string who = "rank " + std::to_string(offset + static_cast<int64_t>(first)) + " of " +
                          std::to_string(count);
  const Said said = read_lines(rank.lines);
  if (WIFSIGNALED(rank.status)) {
    const int signal = WTERMSIG(rank.status);
    const bool all =
        ranks.size() > 1 && static_cast<int64_t>(ranks.size()) == count && ended_alike(ranks, rank);
    const std::string was = all ? "all " + std::to_string(count) + " ranks were" : who + " was";
    if (said.crashed) { // core/plugin/crash.cpp
      return Error(was + " " + *said.failure, said.hint, 128 + signal);
    }
    const std::string end =
        was + " ended by signal " + std::to_string(signal) + " (" + strsignal(signal) + ")";
    if (said.failure) {
      return Error(end + " after it failed: " + *said.failure, said.hint, 128 + signal);
    }
    return Error(
        end,
        signal == SIGKILL ? "the kernel kills processes when memory is full: see dmesg" : "",
        128 + signal
    );
  }
  const int code = WEXITSTATUS(rank.status);
  if (!said.failure) {
    return Error(who + " ended with status " + std::to_string(code), "", code);
  }
  const bool own = std::any_of(ranks.begin(), ranks.end(), [&](const EndedRank& other) {
    return contradicts(other, said);
  });
  return Error(*said.failure + (own ? " (" + who + ")" : ""), said.hint, code);
}

} // namespace mh
