// The differences that `megahost check` allows a layout.

#include "core/conformance/layout_trial.hpp"

#include <ATen/ops/full.h>

#include <doctest/doctest.h>

namespace trials_tests {

using namespace mh;

namespace {

TrialResult result(at::ScalarType dtype, double loss, double weight) {
  TrialResult made;
  made.dtype = dtype;
  made.items = 600;
  made.numbers = {{"lm loss", loss}, {"gradient norm", 2}};
  made.tensors["gradient"]["weight"] = at::full({4}, weight, at::kDouble);
  return made;
}

} // namespace

TEST_CASE("one rank's loss that bf16 left alone by chance does not forbid all rounding") {
  const auto finer = result(at::kFloat, 6.5, 1);
  const auto one = result(at::kBFloat16, 6.5, 1.004);
  const auto within = [&](double loss) {
    return compare_trials(one, result(at::kBFloat16, loss, 1.004), 0, &finer);
  };
  CHECK(within(6.5 * (1 + 2.3e-5)).within());
  const auto wrong = within(6.5 * (1 + 5e-4));
  CHECK_FALSE(wrong.within());
  CHECK(wrong.where == "lm loss");
  CHECK(wrong.allowed == doctest::Approx(3.45e-4).epsilon(0.01)); // 2.16 * 2^-8 / sqrt(600)
  const auto coarse = result(at::kFloat, 6.5 * (1 + 2.3e-5), 1);
  CHECK_FALSE(compare_trials(finer, coarse, 1e-5, nullptr).within()
  ); // but float32 is held to its bound
}

TEST_CASE("a tensor may round as much as in the layer where it rounds most") {
  const auto of_layers = [](at::ScalarType dtype, double first, double second) {
    auto made = result(dtype, 6.5, 1);
    made.tensors["gradient"] = {
        {"layers.0.router.weight", at::full({4}, first)},
        {"layers.11.router.weight", at::full({4}, second)},
        {"head.weight", at::full({4}, 1.0)}};
    return made;
  };
  const auto finer = of_layers(at::kFloat, 1, 1);
  const auto one = of_layers(at::kBFloat16, 1.02, 1.004);
  const auto against = [&](double first, double second) {
    return compare_trials(one, of_layers(at::kBFloat16, first, second), 0, &finer);
  };
  CHECK(against(1.02, 1.035).within());
  CHECK_FALSE(against(1.07, 1.004).within());
  auto wrong = of_layers(at::kBFloat16, 1.02, 1.004);
  wrong.tensors["gradient"]["head.weight"] = at::full({4}, 1.01); // which did not round at all
  CHECK(compare_trials(one, wrong, 0, &finer).where == "gradient of head.weight");
}

TEST_CASE("float64 may round as much as fp32 shows a model to be ill-conditioned") {
  const auto one = result(at::kDouble, 6.5, 1), fp32 = result(at::kFloat, 6.5, 1 + 4e-3);
  const auto other = result(at::kDouble, 6.5, 1 + 1e-11);
  CHECK_FALSE(compare_trials(one, other, 1e-12, nullptr).within());
  CHECK(compare_trials(one, other, 1e-12, &fp32).within()); // 2 * 4e-3 * 2^-29 = 1.5e-11
  const auto well = result(at::kFloat, 6.5, 1 + 1e-5);
  CHECK_FALSE(compare_trials(one, other, 1e-12, &well).within());
}

TEST_CASE("fp32 may round as much as float64 shows a model to be ill-conditioned") {
  const auto one = result(at::kFloat, 6.5, 1), other = result(at::kFloat, 6.5, 1 + 1.5e-5);
  const auto ill = result(at::kDouble, 6.5, 1 + 1e-5), well = result(at::kDouble, 6.5, 1 + 1e-6);
  CHECK_FALSE(compare_trials(one, other, 1e-6, nullptr).within());
  CHECK(compare_trials(one, other, 1e-6, &ill).within());
  CHECK_FALSE(compare_trials(one, other, 1e-6, &well).within());
}

TEST_CASE("losses are compared by name") {
  const auto one = result(at::kDouble, 6.5, 1);
  auto other = one;
  CHECK(compare_trials(one, other, 1e-12, nullptr).within());
  other.numbers = {{"auxiliary loss", 6.5}, {"gradient norm", 2}};
  CHECK(compare_trials(one, other, 1e-12, nullptr).where == "lm loss");
  CHECK_FALSE(compare_trials(one, other, 1e-12, nullptr).within());
}

TEST_CASE("a tensor of few elements may round as the tensors of its kind") {
  const auto with_bias = [](at::ScalarType dtype, double weight, double bias) {
    auto made = result(dtype, 6.5, 1);
    made.tensors["gradient"] = {
        {"head.weight", at::full({4, 8}, weight)}, {"head.bias", at::full({2}, bias)}};
    return made;
  };
  const auto finer = with_bias(at::kFloat, 1, 1);
  const auto one = with_bias(at::kBFloat16, 1.008, 1.001); // which is close by chance
  CHECK(compare_trials(one, with_bias(at::kBFloat16, 1.008, 1.01), 0, &finer).within());
  const auto wrong = compare_trials(one, with_bias(at::kBFloat16, 1.008, 1.05), 0, &finer);
  CHECK_FALSE(wrong.within());
  CHECK(wrong.where == "gradient of head.bias");
}

} // namespace trials_tests
