#pragma once
/// What the program itself offers to recipes without any plugin: its devices and checkpoint
/// formats.

#include "megahost/export.hpp"
#include "megahost/host.hpp"

namespace mh {

/// To be called once for a host that resolves recipes, before any of its plugins is opened.
MH_API void merge_built_in(Host& host);

} // namespace mh
