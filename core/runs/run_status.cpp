#include "core/runs/run_status.hpp"

#include "core/base/host_name.hpp"
#include "core/checkpoint/detect_format.hpp"
#include "core/checkpoint/run_folder.hpp"
#include "core/language/read.hpp"
#include "core/recipe/paths.hpp"
#include "core/records/robust_z.hpp"
#include "core/schema/sections.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

namespace mh {
namespace fs = std::filesystem;

namespace {

constexpr size_t kNewest = 50;        // steps that say how fast a run is
constexpr double kSilentSeconds = 60; // without a line, or
constexpr double kSilentSteps = 10;   // as long as so many steps take, whichever is longer

/// The run's length and places by its folder's recipe, without its plugins: they may be gone. If it
/// cannot be read, the result is that of an empty recipe.
Recipe outline(const fs::path& folder) {
  Recipe recipe;
  try {
    const Value tree = evaluate(folder / "recipe.toml");
    const auto section = [&](const char* name) {
      const Value* found = tree.find(name);
      return found == nullptr ? Value(Table()) : *found;
    };
    recipe.train = train_fields().read_complete(section("train"));
    recipe.batch = batch_fields().read_complete(section("batch"));
    RunPlaces places = run_places(tree);
    recipe.checkpoint.dir = std::move(places.checkpoints);
    recipe.run_dir = std::move(places.run);
    if (const Value* format = tree.find_path("checkpoint.use")) {
      recipe.checkpoint.use = format->as_string();
    }
    if (const Value* storage = tree.find("storage")) {
      recipe.storage = plugin_named(*storage);
    }
  } catch (const std::exception&) {
    return {};
  }
  return recipe;
}

std::optional<int64_t> newest_checkpoint(
    const Recipe& recipe, const fs::path& folder, Host& host, std::string& ret_fault
) {
  try {
    if (recipe.storage) {
      host.set_storage_options(*recipe.storage);
    }
    const Path place = checkpoint_folder(recipe, folder);
    if (const auto found = find_format(place, host)) {
      const auto& format = *found->format;
      const auto steps = steps_of(format, place);
      return steps && !steps->empty() ? std::optional(steps->front()) : std::nullopt;
    }
  } catch (const Error& error) { // a storage that does not answer: the rest is still worth reading
    ret_fault = error.what();
  }
  return std::nullopt;
}

/// The format that a run's recipe names, if no plugin here offers it. A run's own plugins are not
/// opened to look at it: it may come from elsewhere.
std::string unread_format(const Recipe& recipe, Host& host) {
  const auto known = host.known(Kind::checkpoint_format);
  const bool is_known = std::ranges::any_of(known, [&](const Registry::Entry* entry) {
    return entry->name == recipe.checkpoint.use || entry->full_name() == recipe.checkpoint.use;
  });
  return is_known ? "" : recipe.checkpoint.use;
}

void measure_speed(RunStatus& status) {
  const size_t steps = status.metrics.steps.size();
  std::vector<double> seconds, data, speeds;
  for (size_t i = steps - std::min(steps, kNewest); i < steps; ++i) {
    seconds.push_back(status.metrics.steps[i].seconds);
    data.push_back(status.metrics.steps[i].data_seconds);
    speeds.push_back(status.metrics.tokens_per_second(i));
  }
  if (steps > 0) {
    status.step_seconds = median(seconds);
    status.data_seconds = median(data);
    status.tokens_per_second = median(speeds);
  }
}

RunState state_of(const RunStatus& status) {
  const StepRecord* last = status.last();
  const bool is_owned = status.owner && status.owner->holds;
  const bool is_elsewhere = status.owner && status.owner->host != host_name();
  if (last != nullptr && status.iterations > 0 && last->step >= status.iterations && !is_owned) {
    return RunState::finished;
  }
  if (is_owned || (is_elsewhere && status.since_step && !status.is_silent())) {
    return last == nullptr ? RunState::starting : RunState::running;
  }
  return RunState::stopped;
}

} // namespace

std::string_view state_name(RunState state) {
  constexpr std::array<std::string_view, 4> kNames{"starting", "running", "finished", "stopped"};
  return kNames[static_cast<size_t>(state)];
}

const StepRecord* RunStatus::last_update() const {
  const auto found =
      std::find_if(metrics.steps.rbegin(), metrics.steps.rend(), [](const StepRecord& record) {
        return !record.losses.empty();
      });
  return found == metrics.steps.rend() ? nullptr : &*found;
}

std::optional<double> RunStatus::remaining() const {
  if (!goes_on() || last() == nullptr || iterations == 0) {
    return std::nullopt;
  }
  return static_cast<double>(std::max<int64_t>(0, iterations - last()->step)) * step_seconds;
}

bool RunStatus::is_silent() const {
  return since_step && *since_step > std::max(kSilentSeconds, kSilentSteps * step_seconds);
}

RunStatus read_status(const std::string& folder, Host& host) {
  RunStatus status;
  status.metrics = named_run(folder);
  update_status(status, host);
  return status;
}

void update_status(RunStatus& status, Host& host) {
  read_on(status.metrics);
  const fs::path& place = status.metrics.folder;
  status.owner = lock_owner(run_lock(place));
  const Recipe recipe = outline(place);
  status.iterations = recipe.train.iters || recipe.train.samples ? recipe.iterations() : 0;
  status.skipped = std::count_if(
      status.metrics.steps.begin(),
      status.metrics.steps.end(),
      [](const StepRecord& record) { return record.skipped; }
  );
  status.checkpoint = newest_checkpoint(recipe, place, host, status.checkpoint_fault);
  status.unread_format = status.checkpoint ? "" : unread_format(recipe, host);
  status.events = read_journal(place);
  status.goodput = goodput(status.metrics.steps, status.events);
  status.ranks = read_rank_table(place);
  measure_speed(status);
  std::error_code none;
  const auto written = fs::last_write_time(metrics_file(place), none);
  if (!none) {
    const std::chrono::duration<double> since = fs::file_time_type::clock::now() - written;
    status.since_step = std::max(0.0, since.count());
  }
  status.state = state_of(status);
}

} // namespace mh
