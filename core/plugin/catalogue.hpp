#pragma once
/// Everything that plugins offer, for texts about all of it: schemas for editors, reference pages,
/// help.

#include "core/editor/editor.hpp"
#include "core/recipe/resolve.hpp"
#include "megahost/export.hpp"
#include "megahost/host.hpp"

#include <vector>

namespace mh {

/// Opens every plugin that is found and can be opened. If several files hold one plugin, the first
/// counts, which is the one that a run would open.
///
/// Returns: entries by kind, then name
[[nodiscard]] std::vector<const Registry::Entry*> open_all(Host& host);

/// The same, and the presets of the recipe folders.
[[nodiscard]] RecipeCatalogue recipe_catalogue(Host& host);

/// The lookup by which `resolve` finds plugins; the host outlives it.
[[nodiscard]] MH_API PluginLookup plugin_lookup(Host& host);

} // namespace mh
