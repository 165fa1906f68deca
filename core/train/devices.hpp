#pragma once
/// The devices that come with the program: "cpu" and "cuda".

#include "megahost/export.hpp"
#include "megahost/registry.hpp"

#include <string>

namespace mh {

/// A registry with both, to be merged into the run's.
[[nodiscard]] MH_API Registry builtin_devices();

/// The level of vector instructions that kernels run at: "AVX512". Results are bit-identical only
/// at the same level and thread count.
[[nodiscard]] std::string cpu_level();

} // namespace mh
