#pragma once
/// The norm behind a recurrence, with what passes next to the recurrence and the gate.

#include <megahost/builder.hpp>
#include <megahost/mesh.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace mh::hybrid {

/// RMSNorm of (y + skip x) silu(z), by groups of neighbouring heads.
///
/// The skip is added here: gradients of decays are differences of what a recurrence made by itself,
/// which would be lost in the rounding of the sum.
///
/// Parameters: `weight` [heads * dim]
/// Shapes:  y, x [seq, batch, heads, dim], skip [heads], z [seq, batch, heads * dim] -> z's
/// Dtype:   y float32, or float64 if z is; the result has z's
/// Memory:  saves its inputs and a number for each group of a token
/// Ranks:   collective over ranks that hold parts of one group, forward and backward
/// Source:  arXiv:2405.21060 section 7.1 (norm), 7.2 (groups)
class GatedNorm {
public:
  GatedNorm(Builder& builder, Axis heads, int64_t groups, double eps);

  /// `target`: type that kernels are chosen for, on the Meta device too.
  [[nodiscard]] at::Tensor forward(
      const at::Tensor& y,
      const at::Tensor& x,
      const at::Tensor& skip,
      const at::Tensor& z,
      at::DeviceType target
  ) const;

private:
  double eps_;
  int64_t groups_;           // groups that this rank has parts of
  std::vector<Group> parts_; // ranks that hold parts of one group; empty: groups are whole
  Parameter* weight_;
};

} // namespace mh::hybrid
