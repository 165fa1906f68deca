#include "megahost/parameter.hpp"
#include "megahost/random.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <doctest/doctest.h>

#include <cmath>
#include <span>

using namespace mh;

TEST_CASE("philox gives the published vectors") {
  // Random123's known answers for philox4x32-10.
  CHECK(philox(0, 0, 0) == std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(
      philox(~0ULL, ~0ULL, ~0ULL) ==
      std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}
  );
}

TEST_CASE("initial values depend on name and global index only") {
  const uint64_t key = random_key(7, "layers.0.mlp.up.weight");
  const at::Tensor whole = at::empty({10, 13});
  fill_normal(whole, key, 0.02, {10, 13}, {0, 0});
  const at::Tensor part = at::empty({4, 6});
  fill_normal(part, key, 0.02, {10, 13}, {5, 7});
  CHECK(at::equal(part, whole.narrow(0, 5, 4).narrow(1, 7, 6)));
  CHECK(random_key(7, "a") != random_key(7, "b"));
  CHECK(random_key(7, "a") != random_key(8, "a"));
}

TEST_CASE("every kind of initial values is the same whole and in slices") {
  const uint64_t key = random_key(7, "layers.0.ssm.dt");
  const std::vector<int64_t> shape{3, 10, 13};
  for (const Init& init :
       {Init::zeros(),
        Init::constant(0.5),
        Init::normal(0.02),
        Init::uniform(-1, 3),
        Init::log_uniform(1e-3, 0.1).mapped([](double dt) { return std::log(std::expm1(dt)); }),
        Init::of_index([](std::span<const int64_t> i) {
          return static_cast<double>(100 * i[0] + 10 * i[1] + i[2]);
        })}) {
    const at::Tensor whole = at::zeros(shape, at::kDouble);
    init.fill(whole, key, shape, {0, 0, 0});
    const at::Tensor part = at::zeros({2, 4, 6}, at::kDouble);
    init.fill(part, key, shape, {1, 5, 7});
    CHECK(at::equal(part, whole.narrow(0, 1, 2).narrow(1, 5, 4).narrow(2, 7, 6)));
  }
  const at::Tensor index = at::zeros(shape, at::kDouble);
  Init::of_index([](std::span<const int64_t> i) {
    return static_cast<double>((i[0] * 10 + i[1]) * 13 + i[2]);
  }).fill(index, key, shape, {0, 0, 0});
  CHECK(at::equal(index.flatten(), at::arange(390, at::kDouble)));
  const at::Tensor ones = at::zeros({4});
  Init::zeros().mapped([](double zero) { return zero + 1; }).fill(ones, key, {4}, {0});
  CHECK(at::equal(ones, at::ones({4})));
}

TEST_CASE("initial values are uniform, or their logarithms are") {
  const uint64_t key = random_key(1, "x");
  at::Tensor x = at::zeros({1000, 1000}, at::kDouble);
  Init::uniform(-1, 3).fill(x, key, {1000, 1000}, {0, 0});
  CHECK(x.min().item().toDouble() >= -1);
  CHECK(x.max().item().toDouble() < 3);
  CHECK(x.mean().item().toDouble() == doctest::Approx(1).epsilon(0.005));
  CHECK(x.std().item().toDouble() == doctest::Approx(4 / std::sqrt(12)).epsilon(0.005));
  Init::log_uniform(1e-3, 0.1).fill(x, key, {1000, 1000}, {0, 0});
  CHECK(x.lt(1e-2).to(at::kDouble).mean().item().toDouble() == doctest::Approx(0.5).epsilon(0.005));
  CHECK(x.lt(1e-3 * (1 - 1e-12)).any().item().toBool() == false);
}

TEST_CASE("initial values are normal") {
  const at::Tensor x = at::empty({1000, 1000});
  fill_normal(x, random_key(1, "x"), 2.0, {1000, 1000}, {0, 0});
  CHECK(x.mean().item().toDouble() == doctest::Approx(0).epsilon(0.01));
  CHECK(x.std().item().toDouble() == doctest::Approx(2.0).epsilon(0.005));
  CHECK(
      x.abs().gt(4.0).to(at::kDouble).mean().item().toDouble() ==
      doctest::Approx(0.0455).epsilon(0.03)
  );
}
