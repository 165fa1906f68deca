// The plain form of an optimizer's pass by numbers in memory, as devices without kernels run it.

#include "core/kernels/update_plain.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/zeros_like.h>

#include <doctest/doctest.h>

namespace update_numbers_tests {

using namespace mh;

namespace {

ops::UpdateItemView item_of(at::ScalarType weight, at::ScalarType state) {
  ops::UpdateItemView item;
  item.weight = at::linspace(-1, 1, 96).view({8, 12}).to(weight);
  item.gradient = at::linspace(0.5, -0.25, 96).view({8, 12});
  item.first = at::zeros_like(item.weight, state);
  item.second = at::zeros_like(item.weight, state);
  item.key = 77;
  return item;
}

/// Three passes; numbers lie in memory, or do not.
ops::UpdateItemView passed(ops::UpdateNumbers numbers, ops::UpdateItemView item, bool in_memory) {
  const auto number = [in_memory](double value) {
    return in_memory ? Number(at::full({}, value, at::kDouble)) : Number(value);
  };
  const at::Tensor gradient = item.gradient.clone();
  for (const double step : {1.0, 2.0, 5000000000.0}) { // more than 32 bits
    item.gradient.copy_(gradient);
    numbers.step = number(step);
    numbers.scale = number(0.5 / step);
    item.rate = number(0.02) * 0.3;
    item.decay = number(0.1);
    ops::update_plainly(numbers, item);
  }
  return item;
}

} // namespace

TEST_CASE("the plain form of an update is the same by numbers in memory") {
  using enum UpdateKind;
  const ops::UpdateNumbers all[] = {
      {.kind = adam, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8},
      {.kind = adam, .decoupled = false, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8},
      {.kind = sgd, .nesterov = true, .beta1 = 0.9},
      {.kind = average, .beta1 = 0.9}};
  for (auto numbers : all) {
    CAPTURE(static_cast<int>(numbers.kind));
    for (const bool narrow : {false, true}) {
      CAPTURE(narrow);
      const auto type = narrow ? at::kBFloat16 : at::kFloat;
      numbers.stochastic = narrow;
      const auto host = passed(numbers, item_of(type, type), false);
      const auto memory = passed(numbers, item_of(type, type), true);
      CHECK(at::equal(host.weight, memory.weight));
      CHECK(at::equal(host.first, memory.first));
      CHECK(at::equal(host.second, memory.second));
      CHECK(at::equal(host.gradient, memory.gradient));
    }
  }
}

} // namespace update_numbers_tests
