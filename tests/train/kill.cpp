// The program, killed with SIGKILL at random points again and again, ends with the bits of a run
// that was left alone.

#include "runs.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <random>
#include <set>
#include <string>
#include <thread>

namespace {

using Clock = std::chrono::steady_clock;
using runs::fs::path;

constexpr int kSteps = 40;

/// A recipe that saves after every second step, so that a good part of the run is spent saving.
void write_recipe(const path& file) {
  std::ofstream(file) << R"(
name = "killed"
precision = "fp32"
[model]
use = "llama"
layers = 2
hidden = 96
heads = 2
dropout = 0.1
seq_length = 32
[optimizer]
use = "adamw"
lr = 1e-2
[lr_schedule]
use = "cosine"
[batch]
global = 4
micro = 2
[tokenizer]
use = "null"
vocab = 40
[data]
use = "mock"
[train]
iters = )" << kSteps << R"(
eval_interval = 10
eval_iters = 1
[checkpoint]
interval = 2
keep = 3
)";
}

pid_t start(const path& recipe, const path& run, bool resume) {
  const std::string program = std::getenv("MEGAHOST");
  std::vector<std::string> words{program, "run", recipe.string(), "--run-dir", run.string()};
  if (resume) {
    words.emplace_back("--resume=auto");
  }
  std::vector<char*> arguments;
  for (auto& word : words) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  const path output = run.parent_path() / "output.txt";
  posix_spawn_file_actions_addopen(&files, 1, output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&files, 1, 2);
  pid_t child = 0;
  REQUIRE(posix_spawn(&child, program.c_str(), &files, nullptr, arguments.data(), environ) == 0);
  posix_spawn_file_actions_destroy(&files);
  return child;
}

int finish(pid_t child) {
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool ended(pid_t child) {
  siginfo_t info{};
  return waitid(P_PID, child, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == child;
}

/// Names of checkpoints that are, or were when a process died, half-written.
std::set<std::string> half_written(const path& run) {
  std::set<std::string> names;
  std::error_code none;
  for (const auto& entry : runs::fs::directory_iterator(run / "checkpoints", none)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with("step-") && !runs::fs::exists(entry.path() / "megahost.manifest.json")) {
      names.insert(name);
    }
  }
  return names;
}

class Killer {
public:
  /// Lets the process run for a while, then kills it. Four times in ten it waits for a save to
  /// begin. Returns whether it was killed; else it had come to its end.
  bool operator()(pid_t child, const path& run, const std::set<std::string>& old) {
    const auto saves = [&] { return half_written(run) != old; };
    const auto deadline = Clock::now() + std::chrono::seconds(60);
    if (random_() % 10 < 4) {
      while (!saves() && !ended(child) && Clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % 20000));
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(200 + random_() % 1000));
    }
    const bool saving = saves();
    ::kill(child, SIGKILL);
    const int status = finish(child);
    REQUIRE((status == 0 || status == -1));
    while_saving += status == -1 && saving ? 1 : 0;
    return status == -1;
  }

  int while_saving = 0;

private:
  std::mt19937 random_{20};
};

} // namespace

TEST_CASE("a run killed again and again ends with the bits of one that was left alone") {
  const char* given = std::getenv("MH_KILLS");
  const int wanted = given != nullptr ? std::atoi(given) : 10;
  const runs::Folder folder;
  const path recipe = folder / "recipe.toml";
  write_recipe(recipe);
  REQUIRE(finish(start(recipe, folder / "whole", false)) == 0);
  const auto expected = runs::tensors(folder / "whole", kSteps);
  const auto expected_metrics = runs::metrics(folder / "whole");

  Killer killer;
  int kills = 0;
  int rounds = 0;
  while (kills < wanted) { // a fresh run each time one has come to its end
    const path run = folder / std::string("killed-").append(std::to_string(++rounds));
    bool resume = false;
    while (kills < wanted) {
      const auto old = half_written(run);
      if (!killer(start(recipe, run, resume), run, old)) {
        break;
      }
      ++kills;
      resume = true;
    }
    REQUIRE(finish(start(recipe, run, resume)) == 0);
    CHECK(runs::tensors(run, kSteps) == expected);
    CHECK(runs::metrics(run) == expected_metrics);
    CHECK(half_written(run).empty());
  }
  MESSAGE(
      kills << " kills in " << rounds << " runs, " << killer.while_saving << " of them while saving"
  );
  CHECK(killer.while_saving > 0);
}
