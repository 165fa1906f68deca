// megahost plan: what a run would take.

#include "core/plan/plan.hpp"

#include "core/host/bench/machine.hpp"
#include "core/host/commands/commands.hpp"
#include "core/host/folders.hpp"
#include "core/host/plan/report.hpp"
#include "core/plan/hardware.hpp"
#include "core/recipe/text.hpp"
#include "core/train/processor.hpp"
#include "megahost/error.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace mh {

namespace {

constexpr int64_t kMostGpus = 1 << 20;
constexpr double kSlow = 0.4; // an MFU below which changes are looked for

/// "1T", "300B", "5e9".
double token_count(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  const double factor = unit.empty()                 ? 1
                        : unit == "T"                ? 1e12
                        : unit == "B" || unit == "G" ? 1e9
                        : unit == "M"                ? 1e6
                        : unit == "K"                ? 1e3
                                                     : 0;
  if (end == text.c_str() || factor == 0 || !(number > 0) || !std::isfinite(number)) {
    throw Error(
        "--tokens " + text + " is no number of tokens", "write it as 1T, 300B, 5e9 or 250M"
    );
  }
  return number * factor;
}

/// A recipe as it would be read on the planned machine, with some more sets.
class Question {
public:
  Question(const Invocation& invocation, Host& host)
      : invocation_(invocation)
      , host_(host) {
    if (invocation.has("--on")) {
      machine_ = find_machine(invocation.value("--on"), roots());
    }
  }

  [[nodiscard]] Recipe recipe(const std::vector<std::string>& sets = {}) const {
    Invocation asked = invocation_;
    auto& all = asked.options["--set"];
    all.insert(all.end(), sets.begin(), sets.end());
    std::vector<Layer> layers;
    if (machine_) {
      layers.push_back({"--on", Table{{"device", machine_->hardware.device}}});
    }
    const bool bf16 = machine_ ? machine_->hardware.bf16_tflops > 0 : this_processor().bf16();
    return read_resolved(
               asked, host_, asked.arguments.front(), layers, Facts{.bf16 = bf16, .world = gpus()}
    )
        .resolved.recipe;
  }

  /// Ranks of the run.
  [[nodiscard]] int64_t world(const Recipe& recipe) const {
    const auto& parallel = recipe.parallel;
    const bool automatic = !std::holds_alternative<int64_t>(parallel.data);
    if (!invocation_.has("--gpus")) {
      return parallel.ranks();
    }
    const int64_t ranks = automatic ? parallel.model_ranks() : parallel.ranks();
    if (automatic ? gpus() % ranks != 0 : gpus() != ranks) {
      throw Error(
          "--gpus " + std::to_string(gpus()) + " is " +
              (automatic ? "no multiple of the " + std::to_string(ranks) +
                               " ranks of one copy of the model (tensor x pipeline x context)"
                         : "not the " + std::to_string(ranks) + " ranks of the recipe's layout"),
          automatic ? "give a multiple of " + std::to_string(ranks) +
                          ", or change the degrees in "
                          "`parallel`"
                    : "set parallel.data = \"auto\", or give --gpus " + std::to_string(ranks)
      );
    }
    return gpus();
  }

  [[nodiscard]] Machine machine(const Recipe& recipe, int64_t world) const {
    if (machine_) {
      return *machine_;
    }
    if (recipe.device != "cpu") {
      return find_machine(kUsualGpu, roots());
    }
    return measure_cpu(recipe.precision == "fp32" ? at::kFloat : at::kBFloat16, world);
  }

  [[nodiscard]] RecordedStep record(const Recipe& recipe) const {
    return record_step(
        {.recipe = recipe, .host = host_, .world = world(recipe), .device = planned_device(recipe)}
    );
  }

private:
  static ReadOptions roots() {
    ReadOptions options;
    options.roots = recipe_folders();
    return options;
  }

  [[nodiscard]] int64_t gpus() const {
    return number_option(invocation_, "--gpus", /*otherwise=*/1, /*least=*/1, kMostGpus);
  }

  const Invocation& invocation_;
  Host& host_;
  std::optional<Machine> machine_;
};

/// Single changes worth a try.
std::vector<std::vector<std::string>> candidates(const Recipe& recipe) {
  const auto& p = recipe.parallel;
  std::vector<std::vector<std::string>> all;
  const auto number = [](const char* key, int64_t value) {
    return std::string(key) + "=" + std::to_string(value);
  };
  if (p.tensor > 1 && !p.sequence) {
    all.push_back({"parallel.sequence=true"});
  }
  if (p.zero < 1) {
    all.push_back({"parallel.zero=1"});
  }
  if (p.zero < 2 && p.pipeline == 1) {
    all.push_back({"parallel.zero=2"});
  }
  for (const char* use : {"none", "selective", "full"}) {
    if (recipe.recompute.use != use) {
      all.push_back({std::string("recompute.use=") + use});
    }
  }
  if (recipe.batch.micro > 1) {
    all.push_back({number("batch.micro", recipe.batch.micro / 2)});
  }
  all.push_back({number("batch.micro", recipe.batch.micro * 2)});
  const bool free_data = !std::holds_alternative<int64_t>(p.data);
  if (free_data) {
    all.push_back({number("parallel.tensor", p.tensor * 2)});
    if (p.tensor > 1) {
      all.push_back({number("parallel.tensor", p.tensor / 2)});
    } else {
      all.push_back({"parallel.tensor=2", "parallel.sequence=true"});
    }
    all.push_back({number("parallel.pipeline", p.pipeline * 2)});
    if (p.pipeline > 1) {
      all.push_back({number("parallel.pipeline", p.pipeline / 2)});
    }
  }
  if (p.pipeline > 1 && p.virtual_stages == 1 && p.schedule == "1f1b") {
    all.push_back({"parallel.virtual_stages=2"});
  }
  if (recipe.precision == "fp32") {
    all.push_back({"precision=bf16"});
  }
  return all;
}

/// The three changes that help most: those that make it fit, the fastest first; then those that
/// make what fits faster, or what does not fit smaller.
std::vector<Change> best_changes(
    const Question& question, const Recipe& recipe, const Machine& machine, const Plan& plan
) {
  constexpr size_t kMost = 3;
  constexpr double kWorth = 0.01; // of the time
  std::vector<Change> found;
  for (const auto& sets : candidates(recipe)) {
    try {
      const Recipe changed = question.recipe(sets);
      Plan other = make_plan(question.record(changed), changed, machine);
      if (other.shape.world() != plan.shape.world()) {
        continue;
      }
      const bool faster = other.step.total < plan.step.total * (1 - kWorth);
      const bool helps =
          plan.fits() ? other.fits() && faster : other.fits() || other.most() < plan.most();
      if (helps) {
        found.push_back({sets, std::move(other)});
      }
    } catch (const Error&) { // the recipe refuses it
    }
  }
  std::sort(found.begin(), found.end(), [&](const Change& a, const Change& b) {
    if (a.plan.fits() != b.plan.fits()) {
      return a.plan.fits();
    }
    return a.plan.fits() ? a.plan.step.total < b.plan.step.total : a.plan.most() < b.plan.most();
  });
  found.resize(std::min(found.size(), kMost));
  return found;
}

} // namespace

int command_plan(const Invocation& invocation, Host& host) {
  std::optional<double> tokens;
  if (invocation.has("--tokens")) {
    tokens = token_count(invocation.value("--tokens"));
  }
  const Question question(invocation, host);
  const Recipe recipe = question.recipe();
  const int64_t world = question.world(recipe);
  const RecordedStep record = question.record(recipe);
  const Machine machine = question.machine(recipe, world);
  Plan plan = make_plan(record, recipe, machine);
  if (!invocation.has("--on") && recipe.device != "cpu") {
    plan.notes.emplace_back(
        std::string("the recipe does not say on which GPU: ") + kUsualGpu +
        " is taken, --on names another"
    );
  }
  PlanReport report{recipe, plan, tokens};
  if (!plan.fits() || plan.mfu() < kSlow) {
    report.changes = best_changes(question, recipe, machine, plan);
  }
  std::fputs(
      (invocation.has("--json") ? plan_json(report) : plan_text(report, Terminal::of(STDOUT_FILENO))
      )
          .c_str(),
      stdout
  );
  return plan.fits() ? 0 : 1;
}

} // namespace mh
