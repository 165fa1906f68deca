#include "core/plugin/catalogue.hpp"

#include "core/base/folders.hpp"

#include <algorithm>
#include <tuple>

namespace mh {

std::vector<const Registry::Entry*> open_all(Host& host) {
  for (const FoundPlugin& found : host.scan()) {
    const bool known =
        std::any_of(found.offers.begin(), found.offers.end(), [&](const auto& offer) {
          return host.registry().find(offer.kind, found.plugin.id + "/" + offer.name) != nullptr;
        });
    if (found.skipped.empty() && !known) {
      host.load(found.plugin.file);
    }
  }
  std::vector<const Registry::Entry*> entries;
  for (const Registry::Entry& entry : host.registry().entries()) {
    entries.push_back(&entry);
  }
  std::sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) {
    return std::tie(a->kind, a->name, a->plugin->id) < std::tie(b->kind, b->name, b->plugin->id);
  });
  return entries;
}

PluginLookup plugin_lookup(Host& host) {
  return {
      .find = [&](Kind kind, const std::string& name) { return host.find(kind, name); },
      .names = [&](Kind kind) { return host.names(kind); },
      .known = [&](Kind kind) { return host.known(kind); }};
}

RecipeCatalogue recipe_catalogue(Host& host) {
  ReadOptions options;
  options.roots = recipe_folders();
  return {open_all(host), load_presets(options), load_layouts(options)};
}

} // namespace mh
