#pragma once
/// What recipes and plugins may ask of the machine that a run is for.

#include <cstdint>

namespace mh {

/// What a recipe may ask of the machine, which a Lua recipe sees as `machine`; and what is done
/// with it.
struct Facts {
  bool bf16 = false;  ///< the CPU multiplies bf16 (avx512_bf16 or amx_bf16)
  int64_t world = 1;  ///< ranks, for parallel.data = "auto"
  bool trains = true; ///< false: only evaluated, so that no share of the data need be for training
};

} // namespace mh
