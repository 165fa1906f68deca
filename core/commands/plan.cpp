// megahost plan: what a run would take.

#include "core/plan/plan.hpp"

#include "core/base/folders.hpp"
#include "core/base/text.hpp"
#include "core/bench/machines.hpp"
#include "core/commands/commands.hpp"
#include "core/commands/planned.hpp"
#include "core/draw/report.hpp"
#include "core/plan/changes.hpp"
#include "core/plan/memory.hpp"
#include "core/plan/search.hpp"
#include "core/plan_report/report.hpp"
#include "core/recipe/commands.hpp"
#include "core/storage/file_system.hpp"
#include "core/train/layout_settings.hpp"
#include "megahost/error.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace mh {

namespace {

constexpr int64_t kMostGpus = 1 << 20;
constexpr double kSlow = 0.4; // an MFU below which changes are looked for

} // namespace

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

namespace {

/// "2": the busiest rank's experts get twice the mean's rows.
double imbalance_of(const Invocation& invocation, const Recipe& recipe) {
  const std::string text = invocation.value("--imbalance");
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != '\0' || !(number >= 1) || !std::isfinite(number)) {
    throw Error(
        "--imbalance " + text + " is no number from 1 on",
        "2 gives the busiest rank's experts twice the rows of the mean"
    );
  }
  const Value* experts = recipe.model.options.find("experts");
  if (experts == nullptr || !experts->is_integer() || experts->as_integer() == 0) {
    throw Error(
        "--imbalance is about experts, and the model \"" + recipe.model.use + "\" has none",
        "leave it out, or plan a mixture, such as --set model.preset=mixtral-8x7b"
    );
  }
  return number;
}

/// A recipe as it would be read on the planned machine, with some more sets.
class Question {
public:
  Question(const Invocation& invocation, Host& host, RanksAsked asked)
      : invocation_(invocation)
      , asked_(std::move(asked))
      , host_(host)
      , machines_(invocation.value("--on"), host)
      , file_(invocation.arguments.front()) {
    if (std::filesystem::is_directory(file_)) {
      run_ = measured_of(read_run(file_));
      file_ = (std::filesystem::path(file_) / "recipe.toml").string();
    }
  }

  /// `sets` and `ranks` instead of those that were asked for.
  [[nodiscard]] Recipe recipe(
      const std::vector<std::string>& sets = {}, std::optional<int64_t> ranks = std::nullopt
  ) const {
    Recipe recipe = read(sets, ranks.value_or(gpus())).resolved.recipe;
    if (!missing_vocabulary(recipe).empty()) {
      recipe.tokenizer = Recipe().tokenizer;
    }
    return recipe;
  }

  /// A file of the recipe's tokenizer that is not on this machine, where the model says its own
  /// vocabulary, so that a plan does without; empty if there is none.
  [[nodiscard]] std::string missing_vocabulary(const Recipe& recipe) const {
    const Value* vocab = recipe.model.options.find("vocab");
    const Value* section = recipe.tree.find("tokenizer");
    if (vocab == nullptr || !vocab->is_integer() || vocab->as_integer() == 0 ||
        section == nullptr || section->find("use") == nullptr) {
      return "";
    }
    const std::string& use = section->find("use")->as_string();
    for (const Field& field : host_.require(Kind::tokenizer, use).schema.fields) {
      const Value* path = field.path ? section->find(field.name) : nullptr;
      std::error_code ignored;
      if (path != nullptr && path->is_string() && !path->as_string().empty() &&
          !path->as_string().starts_with('@') &&
          !std::filesystem::exists(path->as_string(), ignored)) {
        return path->as_string();
      }
    }
    return "";
  }

  /// The recipe as read, with some more sets, of a run of `world` ranks.
  [[nodiscard]] Read read(const std::vector<std::string>& sets, int64_t world) const {
    Invocation asked = invocation_;
    auto& all = asked.options["--set"];
    all.insert(all.end(), sets.begin(), sets.end());
    Read read = read_resolved(asked, host_, files(world), machines_.layers(), facts(world));
    if (!std::exchange(said_, true)) {
      say_notes(read, host_);
    }
    return read;
  }

  /// Opens the recipe's plugins: before others that are found, which may be the same.
  void open_plugins() const {
    const LoadOptions options{ReadOptions{.roots = recipe_folders()}};
    mh::open_plugins(load_recipe(files(1), options), host_);
  }

  [[nodiscard]] Facts facts(int64_t world) const { return machines_.facts(world); }

  /// Ranks that were asked for, or that the run had.
  [[nodiscard]] int64_t gpus() const {
    const int64_t otherwise = run_ ? std::max<int64_t>(1, run_->ranks) : 1;
    return number_option(invocation_, "--gpus", otherwise, /*least=*/1, kMostGpus);
  }

  /// The measurements of the run whose folder was given.
  [[nodiscard]] const std::optional<Measured>& run() const { return run_; }

  /// Ranks of the run.
  [[nodiscard]] int64_t world(const Recipe& recipe) const {
    const auto& parallel = recipe.parallel;
    const bool automatic = !std::holds_alternative<int64_t>(parallel.data);
    if (!invocation_.has("--gpus")) {
      return automatic && run_ ? gpus() : parallel.ranks();
    }
    const int64_t ranks = automatic ? parallel.model_ranks() : parallel.ranks();
    if (automatic ? gpus() % ranks != 0 : gpus() != ranks) {
      throw Error(
          asked_.text + " is " +
              (automatic ? "no multiple of the " + std::to_string(ranks) +
                               " ranks of one copy of the model (tensor x pipeline x context)"
                         : "not the " + std::to_string(ranks) + " ranks of the recipe's layout"),
          automatic ? "give a multiple of " + std::to_string(ranks) +
                          ", or change the degrees in "
                          "`parallel`"
                    : "set parallel.data = \"auto\", or give " + asked_.option + " " +
                          std::to_string(ranks)
      );
    }
    return gpus();
  }

  [[nodiscard]] const Machines& machines() const { return machines_; }

  [[nodiscard]] PlanTarget target(
      const Recipe& recipe, std::optional<int64_t> ranks = std::nullopt, double imbalance = 1
  ) const {
    return {
        .recipe = recipe,
        .host = host_,
        .world = ranks ? *ranks : world(recipe),
        .device = planned_device(recipe, host_),
        .imbalance = imbalance};
  }

private:
  [[nodiscard]] const RecipeFiles& files(int64_t world) const {
    auto found = files_.find(world);
    if (found == files_.end()) {
      found = files_.emplace(world, recipe_files(file_, facts(world), run_.has_value())).first;
    }
    return found->second;
  }

  const Invocation& invocation_;
  RanksAsked asked_;
  Host& host_;
  Machines machines_;
  std::string file_;
  mutable std::map<int64_t, RecipeFiles> files_; // by the ranks that a Lua recipe may ask for
  mutable bool said_ = false;
  std::optional<Measured> run_;
};

/// --search: over the recipe on one rank each layout is laid as --set would.
int search(const Question& question, const Invocation& invocation, Host& host) {
  if (!invocation.has("--gpus")) {
    throw Error("--search needs --gpus N, the number of ranks whose layouts are tried");
  }
  const std::string file = invocation.value("-o");
  const RecipeFormat format = file.empty() ? RecipeFormat::toml : recipe_format_of(file);
  const int64_t world = question.gpus();
  question.open_plugins();
  const Read base = question.read(one_rank_sets(host), /*world=*/1);
  const Machine machine = question.machines().of(base.resolved.recipe, world);
  const SearchTask task{
      host, machine, world, base.resolved.recipe, [&](const std::vector<std::string>& sets) {
        Loaded loaded = base.loaded;
        for (const auto& text : sets) {
          loaded.layers.push_back(set_layer(text));
          loaded.merged = merge(loaded.merged, loaded.layers.back().tree);
        }
        return resolve_loaded(loaded, host, question.facts(world)).recipe;
      }};
  const SearchResult result = search_layouts(task);
  std::string command = invocation.program + " plan " + shell_word(invocation.arguments.front());
  for (const char* option : {"--gpus", "--on", "--set"}) {
    for (const auto& value : invocation.all(option)) {
      command += std::string(" ") + option + " " + shell_word(value);
    }
  }
  const bool json = invocation.has("--json");
  std::fputs(
      (json ? search_json(task, result)
            : search_text(task, result, command, Terminal::of(STDOUT_FILENO)))
          .c_str(),
      stdout
  );
  for (const std::string& sentence : result.warnings) {
    warn(sentence);
  }
  if (!file.empty() && result.fit > 0) {
    const Recipe& fastest = result.frontier.front().recipe;
    replace_file(file, show_recipe(fastest, format, /*origins=*/false));
    if (!json) {
      std::printf("%s is its recipe\n", file.c_str());
    }
  }
  return result.fit > 0 ? 0 : 1;
}

/// The plan on fewer and on more data ranks, powers of two up to eight times as many; the global
/// batch stays.
std::vector<Plan> scaling_of(const Question& question, const Recipe& recipe, const Plan& plan) {
  constexpr int64_t kFurther = 8;
  const int64_t copies = plan.shape.dp, ranks = plan.shape.world() / copies;
  std::set<int64_t> degrees{copies};
  for (int64_t data = 1; data <= kFurther * copies; data *= 2) {
    degrees.insert(data);
  }
  std::vector<Plan> plans;
  for (const int64_t data : degrees) {
    if (data == copies) {
      plans.push_back(plan);
      continue;
    }
    try {
      const int64_t world = data * ranks;
      const Recipe scaled = question.recipe({"parallel.data=" + std::to_string(data)}, world);
      plans.push_back(make_plan(
          record_step(question.target(scaled, world)), scaled, question.machines().of(scaled, world)
      ));
    } catch (const Error&) { // the batch, or a strategy, does not go into so many
    }
  }
  return plans;
}

/// The plan of what is asked, and where it does not fit, or waits much, the changes that help.
Planned planned(const Question& question, Host& host) {
  Planned result{.recipe = question.recipe()};
  const Recipe& recipe = result.recipe;
  const Machine machine = question.machines().of(recipe, question.world(recipe));
  Plan& plan = result.plan;
  plan = make_plan(record_step(question.target(recipe)), recipe, machine);
  for (std::string& note : question.machines().notes(recipe)) {
    plan.notes.push_back(std::move(note));
  }
  if (const std::string file = question.missing_vocabulary(recipe); !file.empty()) {
    plan.notes.push_back(file + " is not on this machine: model.vocab says the vocabulary");
  }
  if (std::string copy = copy_note(plan, recipe); !copy.empty()) {
    plan.notes.push_back(std::move(copy));
  }
  if (!plan.fits() || plan.mfu() < kSlow) {
    result.changes = best_changes(
        {.host = host,
         .machine = machine,
         .recipe = [&](const auto& sets) { return question.recipe(sets); },
         .target = [&](const Recipe& changed) { return question.target(changed); }},
        recipe,
        plan
    );
  }
  return result;
}

} // namespace

Planned planned_run(const Invocation& invocation, Host& host, const RanksAsked& asked) {
  return planned(Question(invocation, host, asked), host);
}

int command_plan(const Invocation& invocation, Host& host) {
  std::optional<double> tokens;
  if (invocation.has("--tokens")) {
    tokens = token_count(invocation.value("--tokens"));
  }
  const Question question(invocation, host, {"--gpus " + invocation.value("--gpus"), "--gpus"});
  if (invocation.has("--search")) {
    return search(question, invocation, host);
  }
  if (invocation.has("-o")) {
    throw Error("-o writes the recipe that --search finds, and --search is not given");
  }
  const Planned found = planned(question, host);
  const auto& [recipe, plan, changes] = found;
  PlanReport report{recipe, plan, tokens};
  report.measured = question.run();
  report.changes = changes;
  report.settings = settings_text(recipe, plan.shape, host);
  if (invocation.has("--imbalance")) {
    const double imbalance = imbalance_of(invocation, recipe);
    const int64_t world = question.world(recipe);
    report.uneven = {
        imbalance,
        make_plan(record_step(question.target(recipe, world, imbalance)), recipe, plan.machine)};
  }
  std::fputs(
      (invocation.has("--json") ? plan_json(report) : plan_text(report, Terminal::of(STDOUT_FILENO))
      )
          .c_str(),
      stdout
  );
  if (invocation.has("--html")) {
    report.scaling = scaling_of(question, recipe, plan);
    replace_file(invocation.value("--html"), plan_page(report));
  }
  return plan.fits() ? 0 : 1;
}

} // namespace mh
