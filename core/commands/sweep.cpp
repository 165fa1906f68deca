#include "core/sweep/sweep.hpp"

#include "core/base/folders.hpp"
#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/checkpoint/detect_format.hpp"
#include "core/commands/commands.hpp"
#include "core/draw/wrap.hpp"
#include "core/kernels/processor.hpp"
#include "core/plugin/catalogue.hpp"
#include "core/recipe/paths.hpp"
#include "core/schema/sections.hpp"
#include "core/storage/file_lock.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/error.hpp"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <sstream>

namespace mh {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kAsked = 1000;         // points that need no question
constexpr int64_t kMostPoints = 100'000; // points at all
constexpr int64_t kMostJobs = 1024;
constexpr size_t kShown = 30; // rows of a table that is drawn again and again

/// The sweep that was asked for: a recipe, and the values that its keys take.
class AskedSweep {
public:
  AskedSweep(const Invocation& invocation, Host& host)
      : invocation_(invocation)
      , host_(host)
      , additions_(sweep_additions(
            invocation.all("--set"),
            invocation.all("--zip"),
            invocation.all("--random"),
            number_option(invocation, "--count", 10, 1, kMostPoints)
        )) {
    options_.roots = recipe_folders();
    options_.sets = additions_.fixed;
    options_.facts = {.bf16 = this_processor().bf16(), .world = 1};
    files_ = read_recipe_files(file(), options_);
    const Loaded base = load_recipe(files_, options_);
    const Value* own = base.merged.find("sweep");
    sweep_ = merge(own != nullptr ? *own : Value(Table{}), additions_.sweep);
    const Value* name = base.merged.find("name");
    name_ = name != nullptr && name->is_string() && !name->as_string().empty()
                ? name->as_string()
                : fs::path(base.file).stem().string();
    if (sweep_.as_table().size() == 0) {
      throw Error(
          file() + " has no sweep, and no option makes one",
          "give a key several values, as in --set optimizer.lr=1e-4,3e-4"
      );
    }
  }

  [[nodiscard]] const std::string& name() const { return name_; }

  [[nodiscard]] int64_t count() const { return count_points(sweep_); }

  /// All points with their recipes; those that are no recipe have failed already.
  [[nodiscard]] std::vector<PointRun> points() const {
    std::vector<PointRun> runs;
    std::set<std::string> seen;
    for (SweepPoint& point : sweep_points(sweep_)) {
      PointRun run = resolve_point(std::move(point));
      // The same values twice are one run; plans may differ in their notes.
      if (seen.insert(run.id).second || invocation_.has("--plan")) {
        runs.push_back(std::move(run));
      }
    }
    return runs;
  }

private:
  [[nodiscard]] const std::string& file() const { return invocation_.arguments.front(); }

  [[nodiscard]] PointRun resolve_point(SweepPoint point) const {
    PointRun run{.point = std::move(point), .id = "", .recipe_text = ""};
    try {
      LoadOptions options = options_;
      options.layers = {run.point.layer()};
      const Machines* machines = invocation_.has("--plan") ? &machines_of(run.point) : nullptr;
      if (machines != nullptr) {
        options.facts = machines->facts(options.facts.world);
        const auto layers = machines->layers();
        options.layers.insert(options.layers.end(), layers.begin(), layers.end());
      }
      Recipe recipe = resolved(options);
      if (invocation_.has("--scale")) {
        options.layers.push_back(scale_recipe(recipe.tree, plugin_lookup(host_)));
        recipe = resolved(options);
      }
      if (machines != nullptr) {
        plan_point(run, recipe, host_, *machines);
      }
      run.ranks = recipe.parallel.ranks();
      run.steps = recipe.iterations();
      Table& tree = recipe.tree.as_table();
      const auto set_dir = [&tree](const std::string& dir) { // entries move when others are erased
        tree.find("checkpoint")->as_table().set("dir", dir);
      };
      const auto anywhere = [](const fs::path& path) { // a store's stay as they are
        return absolute_path(path.string()).as_string();
      };
      set_dir("");
      tree.erase("run_dir");
      tree.erase("name"); // none of them belongs to a recipe's values
      run.id = point_id(show_recipe(recipe, RecipeFormat::toml, /*origins=*/false));
      const fs::path own = PointFiles(folder(), run.id).run;
      run.checkpoints = recipe.run_dir ? fs::path(recipe.checkpoint.dir) / run.id : own;
      set_dir(anywhere(run.checkpoints));
      if (recipe.run_dir) {
        tree.set("run_dir", anywhere(own));
      }
      recipe.tree = with_name(recipe.tree, recipe.name);
      run.recipe_text = show_recipe(recipe, RecipeFormat::toml, /*origins=*/false);
    } catch (const Error& error) {
      run.id = point_id(run.point.label());
      run.state = PointState::failed;
      const std::string what = error.what();
      run.reason = what.substr(0, what.find('\n'));
    }
    return run;
  }

  /// The machines that a point is planned for: those asked for, else those in its notes.
  [[nodiscard]] const Machines& machines_of(const SweepPoint& point) const {
    const Value* noted = point.notes.find("on");
    std::string on = invocation_.value("--on");
    if (on.empty() && noted != nullptr && noted->is_string()) {
      on = noted->as_string();
    }
    return machines_.try_emplace(on, on, host_).first->second;
  }

  static Value with_name(const Value& tree, const std::string& name) {
    Table named{{"name", name}};
    for (const auto& entry : tree.as_table()) {
      named.set(entry.key, entry.value, entry.key_origin);
    }
    return named;
  }

  [[nodiscard]] Recipe resolved(const LoadOptions& options) const {
    Loaded loaded = load_recipe(files_, options);
    loaded.merged.as_table().erase("sweep");
    return resolve_with_plugins(loaded, host_, options.facts).recipe;
  }

public:
  [[nodiscard]] fs::path folder() const {
    return fs::path(invocation_.value("--run-dir", "runs/" + name_ + "-sweep"));
  }

private:
  const Invocation& invocation_;
  Host& host_;
  SweepAdditions additions_;
  LoadOptions options_;
  RecipeFiles files_;                                // evaluated once for all points
  mutable std::map<std::string, Machines> machines_; // by name, once points have asked for them
  Value sweep_;
  std::string name_;
};

/// More than a thousand points are asked about first.
void ask(const AskedSweep& sweep, const Invocation& invocation) {
  const int64_t count = sweep.count();
  const std::string text = grouped(count) + " points";
  if (count > kMostPoints) {
    throw Error(
        "the sweep has " + text + ", more than " + grouped(kMostPoints),
        "split it, or draw: --random"
    );
  }
  if (count <= kAsked || invocation.has("--yes") || invocation.has("--list")) {
    return;
  }
  if (isatty(STDIN_FILENO) == 0) {
    throw Error("the sweep has " + text, "--yes starts it");
  }
  std::fprintf(stderr, "the sweep has %s: start it? [y/N] ", text.c_str());
  std::string answer;
  std::getline(std::cin, answer);
  if (answer != "y" && answer != "yes") {
    throw Error("the sweep was not started");
  }
}

/// A table that is drawn over itself on a terminal; elsewhere a line for each run that ends.
class SweepProgress {
public:
  explicit SweepProgress(const std::vector<PointRun>& points)
      : points_(points)
      , terminal_(Terminal::of(STDOUT_FILENO))
      , said_(points.size()) {
    for (size_t i = 0; i < points.size(); ++i) {
      said_[i] = points[i].state != PointState::waiting;
    }
  }

  void show() {
    if (!terminal_.interactive) {
      say();
      return;
    }
    clear();
    const std::string text = points_table(points_, terminal_, kShown);
    lines_ = rows_of(text);
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }

  void clear() {
    if (lines_ > 0) {
      std::printf("\x1b[%tdA\x1b[J", lines_);
    }
    lines_ = 0;
  }

private:
  /// Rows that the lines of a text take on the terminal.
  [[nodiscard]] std::ptrdiff_t rows_of(const std::string& text) const {
    std::ptrdiff_t rows = 0;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream pieces(wrapped(line, terminal_.width));
      for (std::string piece; std::getline(pieces, piece);) {
        rows += 1 + std::max(0, cells(piece) - 1) / std::max(1, terminal_.width);
      }
      rows += line.empty() ? 1 : 0;
    }
    return rows;
  }

  void say() {
    for (size_t i = 0; i < points_.size(); ++i) {
      const PointRun& run = points_[i];
      if (said_[i] || run.state == PointState::waiting || run.state == PointState::running) {
        continue;
      }
      said_[i] = true;
      std::printf(
          "%s  %s  %s%s\n",
          run.id.c_str(),
          run.point.label().c_str(),
          state_name(run.state),
          run.state == PointState::failed ? (": " + run.reason).c_str()
                                          : formatted(", loss %.4f", run.loss).c_str()
      );
      std::fflush(stdout);
    }
  }

  const std::vector<PointRun>& points_;
  Terminal terminal_;
  std::vector<bool> said_;
  std::ptrdiff_t lines_ = 0;
};

void write_reports(
    const std::string& name, const std::vector<PointRun>& points, const SweepOptions& options
) {
  replace_file((options.folder / "sweep.csv").string(), points_csv(points, options));
  replace_file((options.folder / "sweep.html").string(), points_page(name, points, options));
}

std::vector<std::string> words_for_runs(const Invocation& invocation) {
  std::vector<std::string> words;
  for (const std::string& file : invocation.all("--plugin")) {
    words.insert(words.end(), {"--plugin", file});
  }
  return words;
}

int64_t count_of(const std::vector<PointRun>& points, PointState state) {
  return std::count_if(points.begin(), points.end(), [state](const PointRun& run) {
    return run.state == state;
  });
}

} // namespace

int command_sweep(const Invocation& invocation, Host& host) {
  const AskedSweep sweep(invocation, host);
  ask(sweep, invocation);
  SweepOptions options{
      .folder = sweep.folder(),
      .jobs = number_option(invocation, "--jobs", 1, 1, kMostJobs),
      .retry = invocation.has("--retry"),
      .words = words_for_runs(invocation),
      .holds_checkpoint = [&host](const fs::path& run) {
        return find_format(run, host).has_value();
      }};
  std::vector<PointRun> points = sweep.points();
  const bool json = invocation.has("--json");
  const Terminal terminal = Terminal::of(STDOUT_FILENO);
  if (invocation.has("--plan")) {
    std::fputs((json ? plans_json(points) : plans_table(points, terminal)).c_str(), stdout);
    return count_of(points, PointState::failed) > 0 ? exit_code::other : 0;
  }
  read_results(points, options);
  if (invocation.has("--list")) {
    std::fputs(
        (json ? points_json(points, options) : points_table(points, terminal, points.size()))
            .c_str(),
        stdout
    );
    return 0;
  }
  if (fs::exists(options.folder / "recipe.toml")) {
    throw Error(
        options.folder.string() + " is the folder of a run",
        "give --run-dir a folder of the sweep's own",
        exit_code::data
    );
  }
  make_directories(options.folder.string());
  const FileLock lock(options.folder / ".lock");
  SweepProgress progress(points);
  if (!json) {
    std::printf(
        "%zu points in %s, %ld done before\n",
        points.size(),
        options.folder.c_str(),
        count_of(points, PointState::done)
    );
  }
  const bool whole = run_points(points, options, [&] {
    if (!json) {
      progress.show();
    }
  });
  write_reports(sweep.name(), points, options);
  if (json) {
    std::fputs(points_json(points, options).c_str(), stdout);
  } else {
    progress.clear();
    std::printf("\n%s", points_table(points, terminal, points.size()).c_str());
    std::printf(
        "\n%ld of %zu points done, %ld failed; %s and sweep.csv hold them\n",
        count_of(points, PointState::done),
        points.size(),
        count_of(points, PointState::failed),
        (options.folder / "sweep.html").c_str()
    );
  }
  if (!whole) {
    std::fprintf(stderr, "stopped: the same command goes on\n");
    return 128 + SIGINT;
  }
  return count_of(points, PointState::failed) > 0 ? exit_code::other : 0;
}

} // namespace mh
