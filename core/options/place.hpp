#pragma once
/// This process's place among the ranks of a run.

#include "core/cli/invocation.hpp"
#include "core/mesh/launchers.hpp"
#include "core/mesh/processes.hpp"
#include "megahost/host.hpp"
#include "megahost/recipe.hpp"

#include <memory>
#include <optional>

namespace mh {

/// Says it where it is no run on one rank. In order: the options --rank, --world-size and --master;
/// our own launcher (--nproc); the launcher plugin that the recipe names (`named`), or else all
/// that are known and have no required option; the environment, see mesh/launchers.hpp.
///
/// Throws:  mh::Error if options or environment are there in part, or two launchers claim it
[[nodiscard]] std::optional<Found> find_place(
    const Invocation& invocation, Host& host, const std::optional<PluginSection>& named = {}
);

/// The same before a recipe is read, and so before its plugins are opened: what a Lua recipe is
/// told of its ranks. Launcher plugins are not asked.
[[nodiscard]] std::optional<Found> place_without_plugins(const Invocation& invocation);

/// Meets the other ranks of a run; null where this process is its only one.
///
/// Throws:  mh::Error if they have another recipe, build or set of plugins
/// Ranks:   all of the run
[[nodiscard]] std::unique_ptr<Processes>
meet_ranks(const std::optional<Found>& place, const Recipe& recipe, Host& host);

} // namespace mh
