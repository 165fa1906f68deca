#include "core/mesh/rank_reports.hpp"

#include <nlohmann/json.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <sstream>

namespace mh {

namespace {

struct Said {
  RankPhase phase = RankPhase::none;
  std::optional<std::string> failure; ///< its sentence
  std::string hint;
  bool crashed = false; ///< the failure is a signal
};

const char* name_of(RankPhase phase) {
  constexpr std::array<const char*, 4> kNames{"none", "met", "meshed", "started"};
  return kNames[static_cast<size_t>(phase)];
}

Said read_lines(const std::string& lines) {
  Said said;
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) {
      continue;
    }
    for (const auto one : {RankPhase::met, RankPhase::meshed, RankPhase::started}) {
      said.phase = json.value(name_of(one), false) ? one : said.phase;
    }
    if (json.contains("text")) {
      said.failure = json.value("text", "");
      said.hint = json.value("hint", "");
      said.crashed = json.value("crash", false);
    }
  }
  return said;
}

/// Whether it is not known what this rank would have done where another failed in its set-up: it
/// had not come so far when it was asked to end, or lost the one that failed.
bool is_unheard(const EndedRank& rank, const Said& said, const Said& failed) {
  if (failed.phase == RankPhase::started) {
    return false;
  }
  const bool lost = WIFEXITED(rank.status) && WEXITSTATUS(rank.status) == exit_code::communication;
  return said.failure ? lost && said.phase < failed.phase : rank.told && said.phase <= failed.phase;
}

/// Whether this rank fared otherwise than one that failed with these words.
bool contradicts(const EndedRank& rank, const Said& failed) {
  const Said said = read_lines(rank.lines);
  return !is_unheard(rank, said, failed) && said.failure != failed.failure;
}

/// Whether a signal ended all ranks with the same words, so that none of them is the cause. Without
/// words it came from outside, and ranks that were told to end say nothing about it.
bool ended_alike(const std::vector<EndedRank>& ranks, const EndedRank& first) {
  const Said failed = read_lines(first.lines);
  return std::all_of(ranks.begin(), ranks.end(), [&](const EndedRank& rank) {
    const Said said = read_lines(rank.lines);
    const bool same = WIFSIGNALED(rank.status) && WTERMSIG(rank.status) == WTERMSIG(first.status) &&
                      said.failure == failed.failure && (said.failure || !rank.told);
    return same || (failed.failure && is_unheard(rank, said, failed));
  });
}

} // namespace

void report_phase(RankPhase phase) {
  if (const char* to = std::getenv("MEGAHOST_ERROR_FD")) {
    const std::string line = std::string("{\"") + name_of(phase) + "\":true}\n";
    [[maybe_unused]] const auto written = write(std::atoi(to), line.data(), line.size());
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
