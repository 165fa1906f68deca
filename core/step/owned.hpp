#pragma once
/// What a rank updates: pieces of parameters, or parts of them where `zero` deals them out.

#include "megahost/parameter.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace mh {

/// A piece of a parameter, or a part of one, that this rank updates.
struct Owned {
  Parameter* parameter;
  Piece piece;         ///< `copies`: ranks that update the same elements
  at::Tensor gradient; ///< of the piece's shape
  at::Tensor value;    ///< the same
};

/// The parts of a piece that cover elements [begin, end) of its leaf, counted flat: of a matrix a
/// part of a row, whole rows, and a part of a row. Empty if the piece has none of them.
[[nodiscard]] std::vector<Piece>
parts_of(const Parameter& parameter, const Piece& piece, int64_t begin, int64_t end);

} // namespace mh
