#include "megahost/random.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include <doctest/doctest.h>

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
