#pragma once
/// The linear layer's GEMM in FP8: its autograd Function.

#include "core/model/fp8.hpp"
#include "megahost/context.hpp"
#include "megahost/nn/linear.hpp"

#include <ATen/core/Tensor.h>

namespace mh {

/// The inputs of the Function in addition to its tensors; the layer and the step outlive it.
struct Fp8Call {
  const Linear::Plan* plan;
  const Mesh* mesh;
  Parameter* weight;
  Parameter* bias; // nullptr without
  WeightQueue* queue;
  Fp8State* state;
  int64_t product; // in the state
  bool remember;   // what the operands' largest values are
};

/// x Wᵀ + b with x and W in E4M3; in backward the output's gradient in E5M2. Keeps x in 8 bits.
[[nodiscard]] at::Tensor fp8_linear(const at::Tensor& x, const Fp8Call& call);

} // namespace mh
