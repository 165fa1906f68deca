#pragma once
/// Gradients by central differences, in float64.

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/rand_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <doctest/doctest.h>

#include <functional>
#include <vector>

namespace mh::test {

/// Checks d(sum(w * f(inputs)))/d(inputs) for some fixed w against central differences.
inline void check_gradients(
    const std::function<at::Tensor(const std::vector<at::Tensor>&)>& f,
    std::vector<at::Tensor> inputs,
    double tolerance = 1e-6
) {
  for (auto& input : inputs) {
    input = input.to(at::kDouble).clone().requires_grad_();
  }
  const at::Tensor y = f(inputs);
  const at::Tensor w = (y.detach() * 0.7 + 0.3).cos();
  const auto gradients = torch::autograd::grad({(y * w).sum()}, inputs);
  const at::NoGradGuard no_grad;
  constexpr double kStep = 1e-6;
  for (size_t i = 0; i < inputs.size(); ++i) {
    auto* data = inputs[i].mutable_data_ptr<double>();
    const at::Tensor exact = gradients[i].contiguous();
    for (int64_t j = 0; j < inputs[i].numel(); ++j) {
      const double kept = data[j];
      data[j] = kept + kStep;
      const double above = (f(inputs) * w).sum().item().toDouble();
      data[j] = kept - kStep;
      const double below = (f(inputs) * w).sum().item().toDouble();
      data[j] = kept;
      CAPTURE(i);
      CAPTURE(j);
      CHECK(
          exact.const_data_ptr<double>()[j] ==
          doctest::Approx((above - below) / (2 * kStep)).epsilon(tolerance).scale(1)
      );
    }
  }
}

} // namespace mh::test
