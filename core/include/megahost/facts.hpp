#pragma once
/// Facts about the machine that a run is for, which recipes and plugins may ask for.

#include <cstdint>

namespace mh {

/// The facts about the machine, which a Lua recipe sees as `machine`, and about the run.
struct Facts {
  bool bf16 = false;  ///< the CPU multiplies bf16 (avx512_bf16 or amx_bf16)
  int64_t world = 1;  ///< ranks, for parallel.data = "auto"
  bool trains = true; ///< false: only evaluated, so that no share of the data need be for training
};

} // namespace mh
