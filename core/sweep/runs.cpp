// Processes of a sweep, and what they leave behind.

#include "core/base/seconds.hpp"
#include "core/checkpoint/run_folder.hpp"
#include "core/mesh/spawn.hpp"
#include "core/records/metrics.hpp"
#include "core/records/robust_z.hpp"
#include "core/runs/run_metrics.hpp"
#include "core/storage/file_lock.hpp"
#include "core/storage/file_system.hpp"
#include "core/sweep/sweep.hpp"
#include "core/train/signals.hpp"
#include "megahost/error.hpp"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <thread>

extern char** environ;

namespace mh {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds kBetweenLooks{50}, kBetweenReports{500};
constexpr std::chrono::seconds kUntilUnlocked{60};
constexpr uint64_t kLongestResult = 1 << 20;

struct RunningPoint {
  PointRun* point;
  Clock::time_point start;
};

double median_speed(const RunMetrics& run) {
  std::vector<double> speeds;
  for (size_t i = 0; i < run.steps.size(); ++i) {
    speeds.push_back(run.tokens_per_second(i));
  }
  return median(speeds);
}

/// Reads a run's metrics so far.
void read_metrics(PointRun& point, const fs::path& folder) {
  std::error_code ignored;
  if (!fs::is_regular_file(metrics_file(folder), ignored)) {
    return;
  }
  try {
    const RunMetrics run = read_run(folder.string());
    point.step = run.steps.back().step;
    point.tokens_per_second = median_speed(run);
    if (!run.steps.back().losses.empty()) {
      point.loss = run.steps.back().losses.front().value;
    }
    if (!run.evaluations.empty() && !run.evaluations.back().losses.empty()) {
      point.validation = run.evaluations.back().losses.front().value;
    }
  } catch (const Error&) {
    return; // its first step is not done
  }
}

/// The last line of a log with an error, or how the process ended.
std::string reason_of(const fs::path& log, int status) {
  std::ifstream stream(log);
  std::string found;
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with("error: ")) {
      found = line.substr(7);
    }
  }
  if (!found.empty()) {
    return found;
  }
  return WIFSIGNALED(status) ? std::string("ended by signal ") + strsignal(WTERMSIG(status))
                             : "exit status " + std::to_string(WEXITSTATUS(status));
}

void write_result(const PointRun& point, const PointFiles& files) {
  const Json result{
      {"id", point.id},
      {"status", state_name(point.state)},
      {"reason", point.reason},
      {"seconds", point.seconds}};
  replace_file(files.result.string(), result.dump() + "\n");
}

/// A run of a sweep that was killed may still be saving its checkpoint.
void wait_until_free(const fs::path& run) {
  std::error_code ignored;
  const auto start = Clock::now();
  while (fs::exists(run_lock(run), ignored) && Clock::now() - start < kUntilUnlocked) {
    try {
      const FileLock lock(run_lock(run));
      return;
    } catch (const Error&) {
      std::this_thread::sleep_for(kBetweenLooks);
    }
  }
}

std::vector<std::string> command_of(const PointRun& point, const SweepOptions& options) {
  const PointFiles files(options.folder, point.id);
  wait_until_free(files.run);
  std::vector<std::string> words{"megahost", "run", files.recipe.string()};
  if (point.ranks > 1) {
    words.insert(words.end(), {"--nproc", std::to_string(point.ranks)});
  }
  if (options.holds_checkpoint(point.checkpoints)) {
    words.emplace_back("--resume=auto");
  } else {
    std::error_code ignored;
    fs::remove_all(files.run, ignored); // it came to no checkpoint: it begins anew
  }
  words.insert(words.end(), options.words.begin(), options.words.end());
  return words;
}

/// The environment of a run: its share of the cores.
std::vector<std::string> environment_of(int64_t jobs) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    variables.emplace_back(*variable);
  }
  if (std::getenv("OMP_NUM_THREADS") == nullptr && jobs > 1) {
    const int64_t cores = std::thread::hardware_concurrency();
    variables.push_back("OMP_NUM_THREADS=" + std::to_string(std::max<int64_t>(1, cores / jobs)));
  }
  return variables;
}

/// Starts a run that ends with this process, and that a terminal's Ctrl-C does not reach: it is
/// told to stop once, by us.
pid_t start(const PointRun& point, const SweepOptions& options) {
  const PointFiles files(options.folder, point.id);
  auto words = command_of(point, options);
  auto variables = environment_of(options.jobs);
  const auto arguments = exec_words(words), environment = exec_words(variables);
  const int log = open(files.log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  const pid_t pid = log < 0 ? -1 : fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    setpgid(0, 0);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execve("/proc/self/exe", arguments.data(), environment.data());
    _exit(127);
  }
  const int failure = errno;
  close(log);
  if (pid < 0) {
    throw Error(
        "cannot start the run of point " + point.id + ": " + std::strerror(failure),
        "",
        exit_code::other
    );
  }
  return pid;
}

void finish(
    PointRun& point, int status, double seconds, bool stopping, const SweepOptions& options
) {
  const PointFiles files(options.folder, point.id);
  point.seconds += seconds;
  read_metrics(point, files.run);
  const bool whole = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (whole && (point.step >= point.steps || !stopping)) {
    point.state = PointState::done;
  } else if (stopping) {
    point.state = PointState::stopped;
    return; // the same command goes on
  } else {
    point.state = PointState::failed;
    point.reason = reason_of(files.log, status);
  }
  write_result(point, files);
}

} // namespace

const char* state_name(PointState state) {
  constexpr const char* kNames[] = {"waiting", "running", "done", "failed", "stopped"};
  return kNames[static_cast<size_t>(state)];
}

std::string point_id(const std::string& recipe_text) {
  uint64_t hash = 0xcbf29ce484222325; // FNV-1a
  for (const char c : recipe_text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  constexpr char kDigits[] = "0123456789abcdef";
  std::string id;
  for (int i = 0; i < 10; ++i, hash >>= 4) {
    id += kDigits[hash & 15];
  }
  return id;
}

PointFiles::PointFiles(const fs::path& sweep, const std::string& id)
    : recipe(sweep / (id + ".toml"))
    , run(sweep / id)
    , log(sweep / (id + ".log"))
    , result(sweep / (id + ".json")) {}

void read_results(std::vector<PointRun>& points, const SweepOptions& options) {
  for (PointRun& point : points) {
    if (point.state == PointState::failed) { // it is no recipe
      continue;
    }
    const PointFiles files(options.folder, point.id);
    std::error_code ignored;
    read_metrics(point, files.run);
    if (!fs::is_regular_file(files.result, ignored)) {
      continue;
    }
    const std::string text = read_file(files.result.string(), kLongestResult);
    const Json result = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    const std::string status = result.is_object() ? result.value("status", "") : "";
    point.seconds = status.empty() ? 0 : result.value("seconds", 0.0);
    if (status == "done") {
      point.state = PointState::done;
    } else if (status == "failed" && !options.retry) {
      point.state = PointState::failed;
      point.reason = result.value("reason", "");
    }
  }
}

bool run_points(
    std::vector<PointRun>& points, const SweepOptions& options, const std::function<void()>& changed
) {
  for (const PointRun& point : points) {
    if (!point.recipe_text.empty()) {
      replace_file(PointFiles(options.folder, point.id).recipe.string(), point.recipe_text);
    }
  }
  const StopSignals signals;
  std::map<pid_t, RunningPoint> children;
  auto next = points.begin();
  auto reported = Clock::now();
  bool stopping = false;
  while (true) {
    if (!stopping && !signals.received().empty()) {
      stopping = true;
      for (const auto& [pid, child] : children) {
        kill(pid, SIGTERM);
      }
    }
    while (!stopping && std::ssize(children) < options.jobs && next != points.end()) {
      if (next->state == PointState::waiting) {
        children[start(*next, options)] = {&*next, Clock::now()};
        next->state = PointState::running;
      }
      ++next;
    }
    if (children.empty()) {
      return !stopping;
    }
    bool ended = false;
    for (auto child = children.begin(); child != children.end();) {
      int status = 0;
      if (waitpid(child->first, &status, WNOHANG) == child->first) {
        finish(*child->second.point, status, seconds_since(child->second.start), stopping, options);
        child = children.erase(child);
        ended = true;
      } else {
        ++child;
      }
    }
    if (ended || Clock::now() - reported >= kBetweenReports) {
      for (const auto& [pid, child] : children) {
        read_metrics(*child.point, PointFiles(options.folder, child.point->id).run);
      }
      reported = Clock::now();
      changed();
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

} // namespace mh
