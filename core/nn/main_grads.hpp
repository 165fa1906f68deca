#pragma once
/// Main gradients that a layer's backward pass adds to itself.

#include "megahost/parameter.hpp"

namespace mh {

/// Runs `work` on a parameter's main gradient, or on an undefined tensor if there is no such
/// parameter or it is frozen.
template <class Work>
void with_main_grad(Parameter* parameter, const Work& work) {
  if (parameter != nullptr && parameter->value.requires_grad()) {
    parameter->add_gradient(work);
  } else {
    work(at::Tensor());
  }
}

/// Runs `work` on those of a weight and a bias.
template <class Work>
void with_main_grads(Parameter* weight, Parameter* bias, const Work& work) {
  with_main_grad(weight, [&](const at::Tensor& weight_grad) {
    with_main_grad(bias, [&](const at::Tensor& bias_grad) { work(weight_grad, bias_grad); });
  });
}

} // namespace mh
