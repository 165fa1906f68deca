#include "core/commands/restarts.hpp"

#include "core/draw/report.hpp"
#include "core/records/journal.hpp"
#include "core/records/metrics.hpp"
#include "core/runs/run_metrics.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <csignal>

namespace mh {

namespace {

constexpr size_t kLoop = 3; // failures in a row after one step that are enough

std::string start_count(size_t starts) {
  return std::to_string(starts) + (starts == 1 ? " start" : " starts");
}

/// "after step 12", "before its first step".
std::string after_step(int64_t step) {
  return step > 0 ? "after step " + std::to_string(step) : "before its first step";
}

/// The last step in a run's metrics; 0 without.
int64_t last_step(const std::filesystem::path& folder) {
  if (!std::filesystem::exists(metrics_file(folder))) {
    return 0;
  }
  const RunMetrics run = read_run_so_far(folder);
  return run.steps.empty() ? 0 : run.steps.back().step;
}

} // namespace

std::string why_not_again(const std::vector<FailedStart>& failed, int64_t most) {
  const FailedStart& last = failed.back();
  if (last.status == exit_code::recipe) {
    return "another start would meet the same mistake";
  }
  if (last.status == 128 + SIGTERM || last.status == 128 + SIGINT || last.status == 128 + SIGUSR1) {
    return "it was asked to end";
  }
  if (failed.size() >= kLoop) {
    const auto loop = failed.end() - static_cast<std::ptrdiff_t>(kLoop);
    if (std::all_of(loop, failed.end(), [&](const auto& one) { return one.step == last.step; })) {
      const bool alike = loop->error == last.error;
      return "it failed three times in a row " + after_step(last.step) +
             (alike ? std::string() : ", first of these with: " + loop->error);
    }
  }
  if (std::ssize(failed) > most) {
    return "it failed in each of " + start_count(failed.size()) + ", and --max-restarts allows " +
           std::to_string(most);
  }
  return "";
}

std::vector<std::string> words_to_go_on(std::vector<std::string> words) {
  std::erase_if(words, [](const std::string& word) {
    return word == "--resume" || word.starts_with("--resume=");
  });
  words.emplace_back("--resume=auto");
  return words;
}

int run_with_restarts(const RestartTerms& terms) {
  std::vector<FailedStart> failed;
  std::vector<std::string> words = terms.words;
  while (true) {
    const RanksEnded ended = terms.start(words);
    if (!ended.failure) {
      return ended.status;
    }
    failed.push_back({ended.status, last_step(terms.folder), ended.failure->what()});
    const std::string enough = why_not_again(failed, terms.most);
    if (!enough.empty()) {
      warn("the run is not started again: " + enough);
      return report(*ended.failure);
    }
    report(*ended.failure);
    const std::string count =
        "restart " + std::to_string(failed.size()) + " of " + std::to_string(terms.most);
    warn(
        count + ": the run failed " + after_step(failed.back().step) +
        " and goes on from its newest checkpoint"
    );
    Journal(terms.folder)
        .note(
            {.kind = "restart",
             .step = failed.back().step,
             .text = count + " after: " + failed.back().error}
        );
    // Before it has taken its folder there is nothing to go on from but another run.
    if (std::filesystem::exists(metrics_file(terms.folder))) {
      words = words_to_go_on(terms.words);
    }
  }
}

} // namespace mh
