#pragma once
/// The meaning of a path in a recipe: one rule for every key.
///
/// A file or folder is meant from the folder of the recipe file that says it (also where another
/// recipe extends that file); on the command line, from the working directory. It is made absolute,
/// so that a printed recipe, and the one in a run folder, mean the same anywhere. A run's own copy
/// that has relative ones is older than this rule: they are meant from the working directory, as
/// that run meant them. A run that names no folder is kept in runs/NAME of the working directory.

#include "megahost/schema.hpp"
#include "megahost/value.hpp"

#include <functional>
#include <optional>
#include <string>

namespace mh {

/// A path, absolute; words that begin with `@`, empty ones and what is no string stay as they are.
[[nodiscard]] Value absolute_path(const Value& path);

/// Puts what `change` makes of each path of a table (Field::path), absent ones left out, in its
/// place. `field` is the table's, also where the path is of a table in its list.
void change_paths(
    const Schema& schema,
    const std::function<Value(const Value& path, const Field& field)>& change,
    Table& ret_table
);

/// Makes the paths of a complete table absolute, as its schema says (Field::path).
void make_paths_absolute(const Schema& schema, Table& ret_table);

/// The folders that a run writes, as they are seen from the working directory.
struct RunPlaces {
  std::string checkpoints;
  std::optional<std::string> run; ///< the run's folder, where checkpoints lie elsewhere
};

/// A path as it is seen from the working directory, if it lies in that.
[[nodiscard]] std::string seen_from_here(const std::string& path);

/// The places that a complete recipe's `checkpoint.dir` and `run_dir` name.
[[nodiscard]] RunPlaces run_places(const Value& tree);

/// The checkpoints of the run that the folder `taken` keeps, which may be numbered after the one that
/// the recipe names ("runs/a-2"): their folder has the same number.
[[nodiscard]] std::string checkpoints_of(const RunPlaces& places, const std::string& taken);

} // namespace mh
