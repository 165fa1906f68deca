#pragma once
/// Families of recipes: the table `sweep`, or the command line's words, as a list of points.
///
/// ```lua
/// sweep = {
///   grid   = { ["optimizer.lr"] = { 1e-4, 3e-4 }, ["batch.global"] = { 8, 16 } },
///   zip    = { ["model.layers"] = { 4, 8 }, ["model.hidden"] = { 256, 512 } },
///   list   = { { ["train.seed"] = 1 }, { ["train.seed"] = 2, notes = { published = 5 } } },
///   random = { count = 20, seed = 1, ["optimizer.lr"] = { from = 1e-5, to = 1e-3, log = true }
///   },
/// }
/// ```
///
/// Each part is a list of points, and a sweep is each point of one part with each of the others.

#include "core/recipe/load.hpp"
#include "megahost/value.hpp"

#include <string>
#include <utility>
#include <vector>

namespace mh {

struct SweepPoint {
  std::vector<std::pair<std::string, Value>> values; ///< by key, in the order of the sweep
  Table notes;    ///< notes printed next to a row of `list`, no part of the recipe
  size_t row = 0; ///< the first so many values are those of a row of `list`

  /// Its settings, as a layer of a recipe.
  [[nodiscard]] Layer layer() const;
  /// "lr=3e-4 global=16"; a `name` in the notes stands for the values of the row.
  [[nodiscard]] std::string label() const;
};

/// All points, the last key changing fastest.
///
/// Throws:  RecipeError at the value: a part that is no such table, an empty list, lists in `zip`
/// of different lengths, a range without its ends
[[nodiscard]] std::vector<SweepPoint> sweep_points(const Value& sweep);

/// The points that `sweep_points` makes, without making them; capped at 10^15.
[[nodiscard]] int64_t count_points(const Value& sweep);

/// The command line's additions to a sweep.
struct SweepAdditions {
  std::vector<std::string> fixed; ///< "optimizer.lr=1e-4": the same for all points
  Value sweep = Table{};          ///< grid, zip and random of the words with several values
};

/// "KEY=A,B,C" in `sets` are axes of the grid, in `zips` they are walked side by side; "KEY=A..B"
/// in `randoms` are drawn `count` times from a range, "KEY=log:A..B" by its logarithm, "KEY=A,B,C"
/// from a list.
///
/// Throws:  mh::Error, RecipeError
[[nodiscard]] SweepAdditions sweep_additions(
    const std::vector<std::string>& sets,
    const std::vector<std::string>& zips,
    const std::vector<std::string>& randoms,
    int64_t count
);

} // namespace mh
