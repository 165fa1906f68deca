#pragma once
/// The weights that a rank updates: pieces of parameters, or their local shards under `zero`.

#include "megahost/gradients.hpp"

#include <cstdint>
#include <vector>

namespace mh {

/// The parts of a piece that cover elements [begin, end) of its leaf, counted flat: of a matrix a
/// part of a row, whole rows, and a part of a row. Empty if the piece has none of them.
[[nodiscard]] std::vector<Piece>
parts_of(const Parameter& parameter, const Piece& piece, int64_t begin, int64_t end);

} // namespace mh
