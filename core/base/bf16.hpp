#pragma once
/// bfloat16 as kernels of every device see it.

#include <cstdint>

namespace mh {

/// The upper half of a float.
struct Bf16 {
  uint16_t bits;
};

} // namespace mh
