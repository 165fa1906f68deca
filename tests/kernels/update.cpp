#include "core/kernels/update.hpp"

#include "core/kernels/update_plain.hpp"
#include "tests/kernels/operation.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

namespace mh::test {

namespace {

using at::Tensor;

/// An optimizer's pass over two parameters: what it makes of weight, state and gradient.
Case update_case(std::string name, int64_t count, const ops::UpdateNumbers& numbers) {
  const auto run = [numbers](const Tensors& in, bool plain) {
    Tensors all; // weight, gradient, state
    for (const auto& x : in) {
      all.push_back(x.detach().clone());
    }
    const auto type = all[0].scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    all[1] = all[1].to(type);
    all[3].abs_();
    ops::UpdateTensors tensors;
    for (const auto& [first, size] : {std::pair<int64_t, int64_t>{0, 5}, {5, -1}}) {
      const auto part = [first = first, size = size](const Tensor& x) {
        return x.narrow(0, first, size < 0 ? x.size(0) - first : size);
      };
      tensors.weights.push_back(part(all[0]));
      tensors.gradients.push_back(part(all[1]));
      tensors.first.push_back(part(all[2]));
      if (numbers.kind == UpdateKind::adam) {
        tensors.second.push_back(part(all[3]));
      }
      tensors.rates.push_back(first == 0 ? 0.25 : 0.5);
      tensors.decays.push_back(first == 0 ? 0 : 0.125);
    }
    if (plain) {
      for (size_t i = 0; i < 2; ++i) {
        ops::UpdateItemView item;
        item.weight = tensors.weights[i];
        item.gradient = tensors.gradients[i];
        item.first = tensors.first[i];
        item.second = tensors.second.empty() ? Tensor() : tensors.second[i];
        item.rate = tensors.rates[i];
        item.decay = tensors.decays[i];
        ops::update_plainly(numbers, item);
      }
    } else {
      ops::update_(numbers, tensors);
    }
    return at::cat({all[0].to(type), all[1], all[2].to(type), all[3].to(type)});
  };
  const std::vector<int64_t> shape{count};
  return {
      .name = std::move(name),
      .shapes = {shape, shape, shape, shape},
      .ours = [run](const Tensors& in) { return run(in, false); },
      .plain = [run](const Tensors& in) { return run(in, true); }};
}

} // namespace

Operation update_operation() {
  using enum UpdateKind;
  const ops::UpdateNumbers adamw{
      .kind = adam, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .scale = 0.5, .step = 3};
  auto l2 = adamw;
  l2.decoupled = false;
  return {
      .name = "update",
      .operators = {"megahost::update_"},
      .kernels = {at::kFloat, at::kBFloat16},
      .float_tolerance = 2e-6,
      .bf16_tolerance = 4e-3,
      .cases =
          {update_case("adamw", 203, adamw),
           update_case("adam", 64, l2),
           update_case("sgd", 77, {.kind = sgd, .decoupled = false, .beta1 = 0.9, .scale = 2}),
           update_case("nesterov", 131, {.kind = sgd, .nesterov = true, .beta1 = 0.9}),
           update_case("average", 70, {.kind = average, .beta1 = 0.95, .scale = 0.1}),
           update_case("average, nesterov", 7, {.kind = average, .nesterov = true, .beta1 = 0.95})},
      .large = update_case("adamw, 4 million", 1 << 22, adamw)};
}

} // namespace mh::test
