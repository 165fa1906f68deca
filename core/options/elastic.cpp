#include "core/options/elastic.hpp"

#include "core/base/folders.hpp"
#include "core/base/text.hpp"
#include "core/plan/hardware.hpp"
#include "core/plan/search.hpp"
#include "megahost/error.hpp"

namespace mh {

std::vector<Layout> elastic_layouts(const Invocation& invocation, const Value& recipe) {
  std::vector<Layout> layouts;
  const Value* given = recipe.find_path("parallel.elastic");
  if (given == nullptr || !given->is_array() ||
      (invocation.command != "run" && invocation.command != "eval")) {
    return layouts; // what is no list is refused with the whole recipe
  }
  for (const Value& text : given->as_array()) {
    if (text == Value(std::string(kSearchedLayout))) {
      layouts.push_back({std::string(kSearchedLayout), {}});
      continue;
    }
    const auto parsed = parse_layouts(text.is_string() ? text.as_string() : "");
    layouts.insert(layouts.end(), parsed.begin(), parsed.end());
  }
  if (!layouts.empty() && recipe.find_path("batch.global") == nullptr) {
    throw Error(
        "parallel.elastic lets the number of ranks change, and with it the samples of a step, as "
        "batch.global is not given",
        "set batch.global"
    );
  }
  return layouts;
}

namespace {

/// A machine whose ranks compute in the host's memory. Its rates are no machine's: measured ones would
/// differ from rank to rank, and with them the layouts that ranks find.
Machine nominal_host() {
  Machine machine;
  machine.hardware.name = "host";
  machine.hardware.bf16_tflops = 1;
  machine.hardware.fp32_tflops = 1;
  machine.hardware.memory_tb_s = 0.05;
  machine.hardware.ranks_per_node = 1 << 20;
  machine.hardware.link_gb_s = 5;
  machine.hardware.network_gb_s = 1;
  return machine;
}

Machine machine_of(const Recipe& recipe, Host& host) {
  const std::string& row = host.require(Kind::device, recipe.device.use).planned.machine;
  if (row.empty()) {
    return nominal_host();
  }
  ReadOptions options;
  options.roots = recipe_folders();
  return find_machine(row, options);
}

} // namespace

std::optional<Layout> searched_layout(const Read& base, Host& host, const Facts& facts) {
  const Recipe& recipe = base.resolved.recipe;
  const Machine machine = machine_of(recipe, host);
  const SearchTask task{
      host, machine, facts.world, recipe, [&](const std::vector<std::string>& sets) {
        Loaded loaded = base.loaded;
        for (const auto& text : sets) {
          loaded.layers.push_back(set_layer(text));
          loaded.merged = merge(loaded.merged, loaded.layers.back().tree);
        }
        return resolve_loaded(loaded, host, facts).recipe;
      }};
  const SearchResult result = search_layouts(task);
  if (result.fit == 0 || result.frontier.empty()) {
    return std::nullopt;
  }
  const auto& sets = result.frontier.front().sets;
  return Layout{std::string(kSearchedLayout) + ": " + join(sets, ", "), sets};
}

} // namespace mh
