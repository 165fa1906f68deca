#pragma once
/// The small models that `megahost check` trains, for tests of layouts.

#include "core/plugin/catalogue.hpp"
#include "core/recipe/commands.hpp"
#include "core/recipe/layouts.hpp"
#include "core/recipe/resolve.hpp"
#include "core/schema/sections.hpp"
#include "core/session/built_in.hpp"
#include "megahost/host.hpp"
#include "megahost/recipe.hpp"

#include <string>
#include <vector>

namespace mh {

/// The plugins of this build.
inline Host& small_host() {
  static Host host = [] {
    Host made;
    merge_built_in(made);
    return made;
  }();
  return host;
}

/// Settings of a mixture of experts with 2 layers.
inline std::vector<std::string> small_mixture() {
  return {
      "model.use=moe",
      "model.layers=2",
      "model.hidden=48",
      "model.head_dim=4",
      "model.ffn_hidden=36",
      "model.expert_hidden=20"};
}

/// A model shrunk as `check` does, with settings of its own ("model.use=llama"), under a layout
/// ("context=2,tensor=2"; empty: one rank).
inline Recipe small_recipe(const std::vector<std::string>& settings, const std::string& layout) {
  Host& host = small_host();
  std::vector<std::string> sets = settings;
  if (!layout.empty()) {
    const auto items = parse_layouts(layout).front().sets;
    sets.insert(sets.end(), items.begin(), items.end());
  }
  const auto merged_with = [&](const Layer& middle) {
    Loaded loaded{"test", {}, Value(Table{}), {}};
    loaded.layers = {{"test", Table{{"train", Table{{"iters", 100}}}}}, middle};
    for (const auto& set : sets) {
      loaded.layers.push_back(set_layer(set));
    }
    for (const auto& layer : loaded.layers) {
      loaded.merged = merge(loaded.merged, layer.tree);
    }
    return loaded;
  };
  const Loaded first = merged_with({"nothing", Table{}});
  const PluginLookup plugins = plugin_lookup(host);
  return resolve(merged_with(check_layer(first.merged, plugins)), plugins, {}).recipe;
}

} // namespace mh
