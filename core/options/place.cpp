#include "core/options/place.hpp"

#include "core/base/plugin_fault.hpp"
#include "core/base/text.hpp"
#include "core/config.hpp"
#include "core/mesh/launchers.hpp"
#include "core/mesh/rank_reports.hpp"
#include "core/mesh/spawn.hpp"
#include "core/model/plugin_call.hpp"
#include "core/options/read.hpp"
#include "core/recipe/commands.hpp"
#include "core/train/start_block.hpp"
#include "megahost/abi.hpp"
#include "megahost/error.hpp"
#include "megahost/launcher.hpp"

#include <spdlog/spdlog.h>
#include <sys/prctl.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <string>
#include <system_error>
#include <vector>

namespace mh {

namespace {

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
constexpr int kMostPort = 65535;

/// The place that options of the command line give.
std::optional<Found> given_place(const Invocation& invocation) {
  const char* missing = nullptr;
  bool any = invocation.has("--local-rank");
  for (const char* option : {"--rank", "--world-size", "--master"}) {
    any = any || invocation.has(option);
    missing = missing != nullptr || invocation.has(option) ? missing : option;
  }
  if (!any) {
    return std::nullopt;
  }
  if (missing != nullptr || invocation.has("--nproc")) {
    throw Error(
        missing != nullptr ? std::string("this process's place is given without ") + missing
                           : "--rank says that this is one process of a run, --nproc starts all",
        "give --rank, --world-size and --master for a process that you start, --nproc alone for "
        "processes that megahost starts"
    );
  }
  Found found{.world = {}, .launcher = "the command line"};
  World& world = found.world;
  world.size = world.local_size = number_option(invocation, "--world-size", 1, 1, kMost);
  world.rank = number_option(invocation, "--rank", 0, 0, world.size - 1);
  world.local_rank = number_option(invocation, "--local-rank", world.rank, 0, world.size - 1);
  const std::string master = invocation.value("--master");
  const size_t colon = std::min(master.rfind(':'), master.size());
  const char* end = master.data() + master.size();
  const auto [rest, failure] =
      std::from_chars(std::min(master.data() + colon + 1, end), end, world.master_port);
  world.master_address = master.substr(0, colon);
  if (colon == 0 || failure != std::errc() || rest != end || world.master_port < 1 ||
      world.master_port > kMostPort) {
    throw Error(
        "--master " + master + " is no HOST:PORT",
        "name the machine of rank 0 and a free port there, as in --master 10.0.0.5:29500"
    );
  }
  return found;
}

/// The launchers that are asked if a recipe names none: they need no options.
std::vector<const Registry::Entry*> known_launchers(Host& host) {
  auto launchers = host.known(Kind::launcher);
  std::erase_if(launchers, [](const Registry::Entry* entry) {
    const auto& fields = entry->schema.fields;
    return std::any_of(fields.begin(), fields.end(), [](const Field& f) { return f.required; });
  });
  return launchers;
}

/// The places that launcher plugins say this process has: the one that the recipe names, or all.
std::vector<Found> places_of_plugins(Host& host, const std::optional<PluginSection>& named) {
  std::vector<Found> found;
  const auto asked =
      named ? std::vector{&host.require(Kind::launcher, named->use)} : known_launchers(host);
  for (const Registry::Entry* entry : asked) {
    const auto launcher = Registry::make<Launcher>(*entry, named ? named->options : Table());
    if (const auto world = in_plugin(*launcher, "detect", [&] { return launcher->detect(); })) {
      const std::string fault = world_fault(*world);
      if (!fault.empty()) {
        throw Error(
            "the launcher " + entry->name + " of plugin " + entry->plugin->id +
                " says that this process is " + fault,
            kMendPlugin,
            exit_code::communication
        );
      }
      found.push_back({.world = *world, .launcher = entry->name});
    }
  }
  return found;
}

} // namespace

std::optional<Found>
find_place(const Invocation& invocation, Host& host, const std::optional<PluginSection>& named) {
  if (auto given = given_place(invocation)) {
    return given;
  }
  const bool own = std::getenv("MEGAHOST_RANK") != nullptr;
  const auto places = own ? std::vector<Found>() : places_of_plugins(host, named);
  if (places.size() > 1) {
    throw Error(
        "launchers " + places[0].launcher + " and " + places[1].launcher +
            " both say that they started this process",
        "name one in the recipe: launcher = \"" + places[1].launcher + "\"",
        exit_code::communication
    );
  }
  return places.empty() ? find_world(process_environment()) : places.front();
}

std::optional<Found> place_without_plugins(const Invocation& invocation) {
  auto given = given_place(invocation);
  return given ? given : find_world(process_environment());
}

std::unique_ptr<Processes>
meet_ranks(const std::optional<Found>& place, const Recipe& recipe, Host& host) {
  if (place && place->world.rank > 0) {
    spdlog::set_level(spdlog::level::warn); // what plugins tell is told once
  }
  if (!place || place->world.size == 1) {
    return nullptr;
  }
  if (is_spawned_rank()) {
    prctl(PR_SET_PDEATHSIG, SIGTERM); // a rank does not outlive its launcher
  }
  auto processes = std::make_unique<Processes>(
      *place, std::chrono::milliseconds(static_cast<int64_t>(1e3 * recipe.comm.timeout))
  );
  processes->require_same(
      {{"recipe", show_recipe(recipe, RecipeFormat::toml, /*origins=*/false)},
       {"build", std::string(MH_ABI_TAG) + "\n" + MH_VERSION + " " + MH_BUILT_FOR},
       {"set of plugins", join(used_plugins(recipe, host), "\n")}}
  );
  report_phase(RankPhase::met);
  return processes;
}

} // namespace mh
