#pragma once
/// How many rows of a tensor an operation takes at once.

#include <c10/core/DeviceType.h>

#include <cstdint>

namespace mh::hybrid {

/// On a CPU so many that they stay in its caches from one operation to the next; elsewhere so many
/// that hardly a launch is added, and what is made of them stays small next to what is kept.
[[nodiscard]] constexpr int64_t rows_at_once(c10::DeviceType target) {
  return target == c10::DeviceType::CPU ? 64 : 4096;
}

} // namespace mh::hybrid
