#pragma once
/// A plan for commands that act on it.

#include "core/cli/invocation.hpp"
#include "core/plan/changes.hpp"
#include "core/plan/plan.hpp"
#include "megahost/host.hpp"
#include "megahost/recipe.hpp"

#include <string>
#include <vector>

namespace mh {

struct Planned {
  Recipe recipe;
  Plan plan{};
  std::vector<Change> changes{}; ///< changes that help if it does not fit, or waits much
};

/// How ranks were asked for, for messages: "--gpus 32", and the option, "--gpus".
struct RanksAsked {
  std::string text, option;
};

/// The plan of `megahost plan RECIPE --on MACHINE --gpus N`.
///
/// Throws:  mh::Error, RecipeError; a layout that has not so many ranks is refused
[[nodiscard]] Planned
planned_run(const Invocation& invocation, Host& host, const RanksAsked& asked);

/// "1T", "300B", "5e9".
///
/// Throws:  mh::Error for another word
[[nodiscard]] double token_count(const std::string& text);

} // namespace mh
