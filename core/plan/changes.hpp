#pragma once
/// Single changes of a recipe that help its plan.

#include "core/plan/plan.hpp"
#include "megahost/host.hpp"
#include "megahost/recipe.hpp"

#include <functional>
#include <string>
#include <vector>

namespace mh {

/// "batch.micro=2", as --set takes it.
[[nodiscard]] std::string number_set(const char* key, int64_t value);

/// Adds each entry of a table, as --set takes it: "recompute.parts=[...]".
void add_sets(std::vector<std::string>& ret_sets, const std::string& section, const Table& table);

/// "parallel.schedule=1f1b", by whatever key names schedules.
[[nodiscard]] std::string schedule_set(const Schema& parallel, const std::string& schedule);

/// Layers of a recipe's model, by all of its fields that are numbers of layers.
[[nodiscard]] int64_t layers_of(Host& host, const Recipe& recipe);

/// "--set batch.micro=2 --set 'recompute.parts=[...]'", as a shell takes it.
[[nodiscard]] std::string set_options(const std::vector<std::string>& sets);

/// A change of a recipe and what it does to the plan.
struct Change {
  std::vector<std::string> sets; ///< settings in the form of --set
  Plan plan;
};

struct ChangeTask {
  Host& host;
  const Machine& machine;
  /// The recipe with these sets. Throws what it refuses.
  std::function<Recipe(const std::vector<std::string>& sets)> recipe;
  std::function<PlanTarget(const Recipe& recipe)> target;
};

/// The three changes that help most: those that make it fit, the fastest first; then those that
/// make what fits faster, or what does not fit smaller. All ranks stay in use.
[[nodiscard]] std::vector<Change>
best_changes(const ChangeTask& task, const Recipe& recipe, const Plan& plan);

} // namespace mh
