#pragma once
/// The runs of a sweep: each point as a recipe and a run folder of its own, several at a time.
///
/// A sweep's folder holds for each point ID.toml (the whole recipe), ID/ (its run folder), ID.log
/// (what it printed) and, once it has ended, ID.json (how); sweep.csv and sweep.html are made of
/// them. An id is made of the recipe's values, so that the same command goes on where it was
/// stopped.

#include "core/bench/machines.hpp"
#include "core/draw/terminal.hpp"
#include "core/recipe/sweep.hpp"
#include "megahost/host.hpp"

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace mh {

enum class PointState : uint8_t { waiting, running, done, failed, stopped };

/// "waiting", "running", ...
[[nodiscard]] const char* state_name(PointState state);

/// The plan of a point.
struct PlannedPoint {
  int64_t ranks = 1;
  double seconds = 0; ///< duration of a step
  double tflops = 0;  ///< per rank
  int64_t bytes = 0;  ///< bytes of the rank that takes most
  int64_t capacity = 0;
  double mfu = 0;
};

/// A point and what came of it.
struct PointRun {
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

  SweepPoint point;
  std::string id;          ///< ten hexadecimal digits
  std::string recipe_text; ///< resolved, in TOML; empty if it could not be resolved
  int64_t ranks = 1;
  int64_t steps = 0; ///< steps of the whole run

  PointState state = PointState::waiting;
  std::string reason{}; ///< why it failed
  double seconds = 0;   ///< duration over all its runs
  int64_t step = 0;     ///< steps that are done
  double loss = kNone, validation = kNone, tokens_per_second = kNone;
  std::optional<PlannedPoint> plan{};
  std::filesystem::path checkpoints{}; ///< folder of its run's checkpoints
};

/// The id of a recipe's text.
[[nodiscard]] std::string point_id(const std::string& recipe_text);

/// The paths of a point's files.
struct PointFiles {
  std::filesystem::path recipe, run, log, result;

  PointFiles(const std::filesystem::path& sweep, const std::string& id);
};

struct SweepOptions {
  std::filesystem::path folder;
  int64_t jobs = 1;                 ///< runs at a time
  bool retry = false;               ///< runs that failed run again
  std::vector<std::string> words{}; ///< behind each `megahost run RECIPE`
  std::function<bool(const std::filesystem::path& run)> holds_checkpoint{};
};

/// Reads what is known of the points from the sweep's folder.
void read_results(std::vector<PointRun>& points, const SweepOptions& options);

/// Runs what is waiting. `changed` is called about twice a second, and when a run has ended.
///
/// Returns: false if a signal stopped it: runs have saved a checkpoint and are `stopped`
/// Throws:  mh::Error (exit code 5) if the folder cannot be written
[[nodiscard]] bool run_points(
    std::vector<PointRun>& points, const SweepOptions& options, const std::function<void()>& changed
);

/// Plans a point; what cannot be planned has failed. Notes of the point that are read: `imbalance`
/// (rows that the busiest rank's experts get, times the mean), `published_tflops`, and `flops =
/// "arXiv:2104.04473"`, where TFLOP/s are counted by that paper's equation 3.
void plan_point(PointRun& run, const Recipe& recipe, Host& host, const Machines& machines);

/// Plans next to what was published, where a point's notes say that.
[[nodiscard]] std::string
plans_table(const std::vector<PointRun>& points, const Terminal& terminal);
/// Plans and what was published as JSON, for programs: an object for each point.
[[nodiscard]] std::string plans_json(const std::vector<PointRun>& points);

/// The points in columns, `most` of them at most: those that run first.
[[nodiscard]] std::string
points_table(const std::vector<PointRun>& points, const Terminal& terminal, size_t most);

/// A line for each point, a column for each key.
[[nodiscard]] std::string
points_csv(const std::vector<PointRun>& points, const SweepOptions& options);

/// One page: the table, the curves of all runs, and the last loss over each key that is a number.
[[nodiscard]] std::string points_page(
    const std::string& title, const std::vector<PointRun>& points, const SweepOptions& options
);

/// The table as programs read it: an object for each point.
[[nodiscard]] std::string
points_json(const std::vector<PointRun>& points, const SweepOptions& options);

} // namespace mh
