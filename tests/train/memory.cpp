#include "core/kernels/caching_allocator.hpp"
#include "tiny.hpp"

#include <ATen/ops/empty.h>

#include <doctest/doctest.h>

TEST_CASE("after three steps no tensor asks the system for memory") {
  mh::install_caching_allocator();
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    tiny::Built model(tiny::config(0.1), nullptr, dtype);
    for (int step = 0; step < 3; ++step) {
      (void)model.gradients(2);
    }
    const auto before = mh::allocator_counts();
    for (int step = 0; step < 5; ++step) {
      (void)model.gradients(2);
    }
    const auto after = mh::allocator_counts();
    CHECK(after.requests > before.requests + 500);
    CHECK(after.system_requests == before.system_requests);
    CHECK(after.held_bytes == before.held_bytes);
    CHECK(after.used_bytes == before.used_bytes);
  }
}

TEST_CASE("memory of tensors is aligned, counted, and used again") {
  mh::install_caching_allocator();
  for (const int64_t bytes : {1, 63, 4097, 3 << 20, 40 << 20}) {
    const auto before = mh::allocator_counts();
    {
      const auto x = at::empty({bytes}, at::kByte);
      CHECK(reinterpret_cast<uintptr_t>(x.data_ptr()) % 64 == 0);
      CHECK(mh::allocator_counts().used_bytes >= before.used_bytes + bytes);
    }
    CHECK(mh::allocator_counts().used_bytes == before.used_bytes);
    const auto held = mh::allocator_counts().held_bytes;
    const auto again = at::empty({bytes}, at::kByte);
    CHECK(reinterpret_cast<uintptr_t>(again.data_ptr()) % 64 == 0);
    CHECK(mh::allocator_counts().held_bytes == held);
  }
  CHECK(at::empty({0}).data_ptr() == nullptr);
}
