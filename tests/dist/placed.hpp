#pragma once
/// The placement rules of tensor, sequence, context and data parallelism without their plugins, and
/// the global tensors behind what a rank holds.

#include "megahost/parameter.hpp"
#include "megahost/placement.hpp"

#include <cstdint>
#include <utility>

namespace mh {

inline Rules rules_of(bool sequence) {
  Rules rules;
  for (const auto logical : {axis::heads, axis::kv_heads, axis::mlp, axis::vocab}) {
    rules.features.push_back({logical, MeshAxis::tp});
  }
  rules.tokens = {{axis::batch, MeshAxis::dp}, {axis::seq, MeshAxis::cp}};
  if (sequence) {
    rules.between = {{axis::seq, MeshAxis::tp}};
  }
  return rules;
}

/// The part of a global tensor that is the piece.
inline at::Tensor slice_of(at::Tensor whole, const Piece& piece) {
  for (size_t d = 0; d < piece.shape.size(); ++d) {
    whole = whole.narrow(static_cast<int64_t>(d), piece.offset[d], piece.shape[d]);
  }
  return whole;
}

} // namespace mh
