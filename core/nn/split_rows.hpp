#pragma once
/// RMSNorm of rows that ranks hold in parts, as queries of all heads are under tensor parallelism.

#include "megahost/mesh.hpp"
#include "megahost/parameter.hpp"

#include <ATen/core/Tensor.h>

#include <vector>

namespace mh {

/// x / sqrt(mean(x²) + eps) * weight, where the mean is that of a whole row. Several ranks may hold
/// the same part (key heads fewer than ranks): then each has a share of its gradient.
///
/// Shapes:  x [..., n], weight [n], of which each rank has an equal part -> x's
/// Dtype:   x any float; means are taken in float32 (float64 for float64)
/// Memory:  saves x and one value per row
/// Ranks:   collective over each of `parts`, forward and backward; `parts` outlives the latter
[[nodiscard]] at::Tensor
split_rmsnorm(const at::Tensor& x, Parameter& weight, double eps, const std::vector<Group>& parts);

} // namespace mh
