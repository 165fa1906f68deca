#pragma once
/// One parameter of an optimizer's pass, and the pass over it by plain ATen operations: for devices
/// and types that have no kernel, and as the kernels' oracle.

#include "core/kernels/update.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace mh::ops {

/// The operator's arguments for one parameter.
struct UpdateItemView {
  at::Tensor weight, gradient, first, second, parameter;
  Number rate = 0, decay = 0;
  uint64_t key = 0;
  at::IntArrayRef shape, offset; // the global tensor's shape, and this slice's offset in it
};

/// Numbers that are tensors stay on their device.
void update_plainly(const UpdateNumbers& numbers, const UpdateItemView& item);

} // namespace mh::ops
