// Options crossed: recipes drawn at random are planned for their ranks, and run on those, threads
// of this process, and on one. Each ends well or in a refusal, and what ran has one rank's loss. A
// recipe that contradicts itself is refused, and tried without what it was refused for.
//
// usage: test_crossed [SECONDS [RECIPES]]
// CROSSED_SEED draws other recipes; CROSSED_RECIPE=FILE tries the recipe of a report again, alone;
// CROSSED_TELL shows refusals.

#include "core/language/problem.hpp"
#include "core/mesh/threads.hpp"
#include "core/plan/plan.hpp"
#include "core/plan/stage_record.hpp"
#include "core/session/built_in.hpp"
#include "core/session/session.hpp"
#include "core/train/train.hpp"
#include "megahost/error.hpp"
#include "tests/dist/random_recipes.hpp"
#include "tests/plan/machine.hpp"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <string>

using namespace mh;
using namespace crossed;

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// How one recipe ended.
struct Outcome {
  enum class Is { ran, refused, failed } is = Is::ran;
  std::string words;    ///< why it is not the first
  bool numbers = false; ///< it was refused for what it computed
};

Outcome failure(const std::string& words) {
  return {Outcome::Is::failed, words};
}

/// The outcome of `run`: its error if that is a refusal, a failure if it is a bug.
template <class Run>
Outcome outcome_of(const std::string& what, const Run& run) {
  try {
    run();
    return {};
  } catch (const Error& error) {
    const std::string words = error.what();
    const bool bug = words.find("bug in megahost") != std::string::npos ||
                     words.find("LibTorch") != std::string::npos;
    return {
        bug ? Outcome::Is::failed : Outcome::Is::refused,
        what + ": " + words,
        error.exit_code() == exit_code::numbers};
  } catch (const std::exception& error) {
    const std::string words = error.what();
    return failure(what + " threw: " + words.substr(0, words.find("\nException raised")));
  }
}

class Silent : public Output {
public:
  void line(const std::string&) override {}
};

class Trials {
public:
  Trials() {
    merge_built_in(host_);
    folder_ = fs::temp_directory_path() / ("megahost-crossed-" + std::to_string(getpid()));
    fs::create_directories(folder_);
    std::ofstream text(folder_ / "text.txt");
    for (int64_t i = 0; i < 1000; ++i) {
      text << "Sentence number " << i * i % 997 << " of a text. ";
    }
  }

  ~Trials() { fs::remove_all(folder_); }

  Trials(const Trials&) = delete;
  Trials& operator=(const Trials&) = delete;

  [[nodiscard]] Drawer drawer(uint64_t seed) {
    return Drawer(host_, (folder_ / "text.txt").string(), seed);
  }

  /// Drops the settings whose keys a recipe is refused for; false if there are none.
  bool mend(Settings& ret_settings) {
    try {
      (void)resolved(ret_settings, host_);
    } catch (const RecipeError& error) {
      const auto refused = [&error](const Setting& one) {
        const auto names = [&one](const Problem& problem) { return problem.key == one.key; };
        return std::ranges::any_of(error.problems(), names);
      };
      return std::erase_if(ret_settings, refused) > 0;
    } catch (const Error&) { // the error names no key
    }
    return false;
  }

  /// More ranks than two cores run in a second or so.
  bool is_large(const Settings& settings) {
    constexpr int64_t kMostRanks = 8;
    try {
      return resolved(settings, host_).parallel.ranks() > kMostRanks;
    } catch (const Error&) { // what refuses it is told by its trial
      return false;
    }
  }

  Outcome try_one(const Settings& settings) {
    std::ofstream(current()) << toml(settings); // for a crash
    Recipe recipe, alone;
    Settings single = settings;
    std::erase_if(single, [](const Setting& one) { return one.key.starts_with("parallel."); });
    Outcome outcome = outcome_of("the recipe", [&] { recipe = resolved(settings, host_); });
    if (outcome.is == Outcome::Is::ran) {
      outcome = outcome_of("the plan", [&] { plan(recipe); });
    }
    double loss = 0, one = 0;
    if (outcome.is == Outcome::Is::ran) {
      outcome = outcome_of("the run", [&] { loss = run(recipe); });
    }
    if ((outcome.is != Outcome::Is::ran && !outcome.numbers) || recipe.parallel.ranks() == 1) {
      return outcome;
    }
    const Outcome several = outcome;
    // The global batch follows the data ranks if it is not given.
    single.push_back({"batch.global", std::to_string(recipe.batch.global)});
    outcome = outcome_of("one rank's run", [&] {
      alone = resolved(single, host_);
      one = run(alone);
    });
    if (several.is == Outcome::Is::refused) {
      return outcome.is == Outcome::Is::ran
                 ? failure("one rank ran, but not several: " + several.words)
                 : several;
    }
    if (outcome.is == Outcome::Is::refused) {
      return failure("ranks ran, but not one: " + outcome.words);
    }
    const bool same = std::abs(loss - one) <= bound(recipe) * std::abs(one);
    if (outcome.is == Outcome::Is::ran && !same) {
      return failure(
          "the loss is " + std::to_string(loss) + ", of one rank " + std::to_string(one)
      );
    }
    return outcome;
  }

  /// The recipe that is being tried.
  [[nodiscard]] fs::path current() const { return folder_.string() + ".toml"; }

private:
  void plan(const Recipe& recipe) {
    for (const auto& [name, device] : {std::pair("h200", at::kCUDA), std::pair("a100", at::kCPU)}) {
      const PlanTarget target{
          .recipe = recipe, .host = host_, .world = recipe.parallel.ranks(), .device = device};
      const Plan made = make_plan(record_step(target), recipe, preset_machine(name));
      if (!(made.step.total > 0) || !std::isfinite(made.step.total)) {
        throw std::runtime_error("a step takes " + std::to_string(made.step.total) + " s");
      }
      if (!(made.executed_flops >= (1 - 1e-9) * made.model_flops)) {
        throw std::runtime_error("a step executes fewer FLOPs than its model has");
      }
    }
  }

  /// The last step's loss, by the whole of the trainer: log, evaluation, checkpoint, sample.
  double run(Recipe recipe) {
    recipe.checkpoint.dir = (folder_ / "run").string();
    fs::remove_all(recipe.checkpoint.dir);
    double loss = 0;
    const auto on = [&](const Mesh& mesh) {
      Silent silent;
      const auto summary = train(recipe, host_, {.mesh = &mesh}, silent);
      if (mesh.rank() == 0) {
        loss = summary.loss.value_or(0);
      }
    };
    run_ranks(mesh_shape(recipe, recipe.parallel.ranks()), on, {.order = recipe.parallel.order});
    return loss;
  }

  /// Rounding of three steps, the first two of which moved the weights.
  static double bound(const Recipe& recipe) {
    return recipe.precision == "fp32" ? 2e-3 : recipe.precision == "fp8" ? 0.1 : 0.03;
  }

  Host host_;
  fs::path folder_;
};

/// Without numbers, so that one bug is one report.
std::string kind_of(const std::string& words) {
  std::string kind;
  for (const char letter : words) {
    if (std::isdigit(static_cast<unsigned char>(letter)) == 0) {
      kind += letter;
    }
  }
  return kind;
}

/// Without them a model has its defaults' sizes, which take minutes.
bool is_size(const std::string& key) {
  return key == "model.layers" || key == "model.hidden" || key == "model.heads" ||
         key == "model.seq_length" || key == "train.iters";
}

/// Drops settings as long as it still fails in the same way.
Settings shrunk(Trials& trials, Settings settings, const std::string& words) {
  const auto end = Clock::now() + std::chrono::seconds(60);
  for (bool dropped = true; dropped;) {
    dropped = false;
    for (size_t i = settings.size(); i-- > 0 && Clock::now() < end;) {
      if (is_size(settings[i].key)) {
        continue;
      }
      Settings fewer = settings;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
      const Outcome outcome = trials.try_one(fewer);
      if (outcome.is == Outcome::Is::failed && kind_of(outcome.words) == kind_of(words)) {
        settings = std::move(fewer);
        dropped = true;
      }
    }
  }
  return settings;
}

int try_file(Trials& trials, const char* path) {
  std::ifstream file(path);
  const Outcome outcome = trials.try_one(read_toml(file));
  std::printf("%s\n", outcome.is == Outcome::Is::ran ? "it ran" : outcome.words.c_str());
  return outcome.is == Outcome::Is::failed ? 1 : 0;
}

void report(Trials& trials, const Settings& settings, const std::string& words, int64_t number) {
  std::printf(
      "\nFAILED: %s\n%s\nlooking for less that fails\n", words.c_str(), toml(settings).c_str()
  );
  std::fflush(stdout);
  const Settings least = shrunk(trials, settings, words);
  const fs::path file = trials.current().string() + "." + std::to_string(number);
  std::ofstream(file) << toml(least);
  std::printf(
      "\n%s\nCROSSED_RECIPE=%s tries it again, megahost run takes it too\n\n",
      toml(least).c_str(),
      file.c_str()
  );
  std::fflush(stdout);
}

} // namespace

int main(int count, char** words) {
  Trials trials;
  if (const char* file = std::getenv("CROSSED_RECIPE")) {
    return try_file(trials, file);
  }
  constexpr size_t kMostReports = 5;
  const char* given = std::getenv("CROSSED_SEED");
  const uint64_t seed = given == nullptr ? 1 : std::strtoull(given, nullptr, 10);
  const auto end = Clock::now() + std::chrono::seconds(count > 1 ? std::atoi(words[1]) : 60);
  std::printf(
      "seed %llu; if this process dies, %s is the recipe\n",
      static_cast<unsigned long long>(seed),
      trials.current().c_str()
  );
  std::fflush(stdout);
  Drawer drawer = trials.drawer(seed);
  int64_t ran = 0, refused = 0, contradictions = 0;
  std::set<std::string> failures;
  const int64_t most = count > 2 ? std::atoll(words[2]) : std::numeric_limits<int64_t>::max();
  while (Clock::now() < end && ran + refused < most && failures.size() < kMostReports) {
    Settings settings = drawer.draw();
    while (trials.mend(settings)) { // a contradiction is a refusal, and what is left goes on
      ++contradictions;
    }
    if (trials.is_large(settings)) {
      continue;
    }
    const Outcome outcome = trials.try_one(settings);
    ran += outcome.is == Outcome::Is::ran ? 1 : 0;
    refused += outcome.is == Outcome::Is::refused ? 1 : 0;
    if (outcome.is == Outcome::Is::failed && failures.insert(kind_of(outcome.words)).second) {
      report(trials, settings, outcome.words, static_cast<int64_t>(failures.size()));
    }
    if (std::getenv("CROSSED_TELL") != nullptr && outcome.is == Outcome::Is::refused) {
      std::printf("refused: %s\n", outcome.words.substr(0, 160).c_str());
    }
  }
  std::printf(
      "%lld ran, %lld were refused, %zu kinds of failure; %lld contradictions were taken out\n",
      static_cast<long long>(ran),
      static_cast<long long>(refused),
      failures.size(),
      static_cast<long long>(contradictions)
  );
  constexpr int64_t kTell = 30; // fewer say nothing of the drawer
  if (ran == 0 || (ran + refused >= kTell && ran < refused)) {
    std::printf("too few ran: the drawn recipes are no good\n");
    return 1;
  }
  fs::remove(trials.current());
  return failures.empty() ? 0 : 1;
}
