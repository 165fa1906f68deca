#pragma once
/// The instruction sets that this program was compiled for, and the choice among them.

#include "core/level/table.hpp"

#include <string_view>
#include <vector>

namespace mh::kernels {

struct Level {
  std::string_view name; ///< "base", "avx2", "avx512", "avx512bf16", "amx"
  const KernelTable* table;
  bool bf16 = false;                  ///< it has vectors that bf16 products may be made with
  const TileKernels* tiles = nullptr; ///< level "amx" alone has them
};

/// The levels that this CPU can run, best first; the last is the plain one.
[[nodiscard]] const std::vector<Level>& levels();

/// The level to use: the best one, or that which environment variable MEGAHOST_CPU_LEVEL names.
/// Throws:  mh::Error if it names one that is not here
[[nodiscard]] const Level& level();

/// Its kernels.
[[nodiscard]] const KernelTable& table();

/// Makes `level()` this one from now on: for tests of each.
void use_level(const Level& level);

/// Small products by LibTorch's own generator of them (oneDNN).
[[nodiscard]] const ProductKernels& products();

/// Whether products of bf16 tiles run on this CPU, at this level.
[[nodiscard]] bool multiplies_bf16();

/// Ends the use of tile registers by this thread; after the last product of a task.
void release_tiles();

} // namespace mh::kernels
