#pragma once
/// The devices and checkpoint formats that the program itself offers to recipes without any plugin.

#include "megahost/export.hpp"
#include "megahost/host.hpp"

namespace mh {

/// To be called once for a host that resolves recipes, before any of its plugins is opened.
MH_API void merge_built_in(Host& host);

} // namespace mh
