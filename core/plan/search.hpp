#pragma once
/// Every layout of a model on so many ranks: which fit, how fast they are, and the few among which
/// there is a choice.

#include "core/draw/terminal.hpp"
#include "core/plan/plan.hpp"
#include "megahost/export.hpp"
#include "megahost/host.hpp"
#include "megahost/recipe.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace mh {

struct SearchTask {
  Host& host;
  const Machine& machine;
  int64_t world;
  const Recipe& base; ///< the recipe on one rank
  /// The recipe with these sets. Throws what it refuses.
  std::function<Recipe(const std::vector<std::string>& sets)> recipe;
};

/// A layout on the frontier.
struct FoundLayout {
  std::vector<std::string> sets; ///< settings in the form of --set
  Recipe recipe;
  int64_t bytes = 0; ///< and `seconds`: as put together (core/plan/short_stages.hpp)
  double seconds = 0;
  Plan plan{}; ///< plan of the recorded step
};

struct SearchResult {
  int64_t tried = 0;
  int64_t refused = 0;   ///< by the recipe's own conditions, or a strategy's or a schedule's
  int64_t too_large = 0; ///< weights, gradients and state alone do not fit
  std::string refusal{}; ///< why one was refused
  std::vector<std::string> warnings{}; ///< warnings of LibTorch and plugins, each sentence once
  int64_t planned = 0;
  int64_t fit = 0; ///< how many of the planned ones fit
  double seconds = 0;
  /// Each is faster than all that take less memory, the fastest first; without any that fits, the
  /// one that takes least.
  std::vector<FoundLayout> frontier{};
};

/// Sets that lay a recipe on one rank, over which a search lays its own.
[[nodiscard]] MH_API std::vector<std::string> one_rank_sets(Host& host);

[[nodiscard]] MH_API SearchResult search_layouts(const SearchTask& task);

/// The search's result as people read it. `command`: the words that plan one of them, up to its
/// sets.
[[nodiscard]] std::string search_text(
    const SearchTask& task,
    const SearchResult& result,
    const std::string& command,
    const Terminal& terminal
);
[[nodiscard]] std::string search_json(const SearchTask& task, const SearchResult& result);

} // namespace mh
