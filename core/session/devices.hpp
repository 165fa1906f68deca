#pragma once
/// The devices that come with the program: "cpu" and "cuda".

#include "megahost/export.hpp"
#include "megahost/registry.hpp"

namespace mh {

/// A registry with both, to be merged into the run's.
[[nodiscard]] MH_API Registry builtin_devices();

} // namespace mh
