#pragma once
/// Conversions between placements that are overlapped with what a layer computes; see
/// placement.hpp.

#include "megahost/mesh.hpp"
#include "megahost/placement.hpp"

#include <ATen/core/Tensor.h>

namespace mh {

/// `convert_forward` and `convert_backward`, whose last collective goes on until it is waited for.
/// `mine`: the tensor has no other user and may be summed in place.
[[nodiscard]] Pending start_convert_forward(
    const at::Tensor& tensor,
    const Placement& from,
    const Placement& to,
    const Mesh& mesh,
    bool mine = false
);
[[nodiscard]] Pending start_convert_backward(
    const at::Tensor& gradient,
    const Placement& from,
    const Placement& to,
    const Mesh& mesh,
    bool mine = false
);

} // namespace mh
