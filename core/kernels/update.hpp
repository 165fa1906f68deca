#pragma once
/// An optimizer's pass over many parameters at once: `megahost::update_`. The SDK's face of it is
/// `update_fused`, whose UpdateRule tells what is computed.

#include "core/level/calls.hpp"
#include "megahost/number.hpp"

#include <ATen/core/Tensor.h>

#include <vector>

namespace mh::ops {

/// Lists with an entry for each parameter; `first`, `second` and `parameters` may be empty.
struct UpdateTensors {
  std::vector<at::Tensor> weights, gradients, first, second, parameters;
  std::vector<Number> rates, decays;
  std::vector<int64_t> keys; ///< key of each parameter's random numbers
  /// Dimensions, global shape and offset of each parameter's slice of its global tensor.
  std::vector<int64_t> places;
};

struct UpdateNumbers {
  UpdateKind kind = UpdateKind::adam;
  bool decoupled = true, nesterov = false, stochastic = false;
  double beta1 = 0, beta2 = 0, eps = 0;
  Number scale = 1, step = 1;
};

/// Shapes:  weights, gradients, state and parameters of one parameter alike
/// Dtype:   weights float32, bf16 or float64; gradients float32 (float64); state float32 or bf16
///          (float64); parameters bf16 or half
void update_(const UpdateNumbers& numbers, UpdateTensors& tensors);

} // namespace mh::ops
