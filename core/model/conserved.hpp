#pragma once
/// The amounts that collectives conserve, for the checking mode: parts that ranks hold add up to
/// the same before and after one. It finds the collective that was left out where no two ranks hold
/// the same
/// and nothing else can be compared: a reduce-scatter, a gather of parts.

#include "megahost/mesh.hpp"
#include "megahost/placement.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace mh {

/// The sums, squares and sizes of some tensors of this rank.
///
/// Returns: float64 [tensors, 3]
[[nodiscard]] at::Tensor amounts_of(const std::vector<at::Tensor>& tensors);

/// The first of some tensors of which a group's ranks hold another amount together than before;
/// -1: none. `type` says how far rounding goes.
///
/// Ranks:   collective over the group
[[nodiscard]] int64_t first_lost(
    const at::Tensor& before, const at::Tensor& after, const Group& group, at::ScalarType type
);

/// The axis of those that `from` -> `to` changes if `after` is not `before`, converted; `gradient`:
/// both are gradients, on their way back.
///
/// Throws:  mh::Error naming layer, tensor and mesh axis
/// Ranks:   collective over these axes
void check_conversion(
    const at::Tensor& before,
    const at::Tensor& after,
    const Placement& from,
    const Placement& to,
    const Mesh& mesh,
    bool gradient,
    std::string_view layer,
    std::string_view tensor
);

} // namespace mh
