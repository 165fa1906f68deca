#include "core/memory/caching_allocator.hpp"
#include "core/memory/heap.hpp"
#include "tiny.hpp"

#include <ATen/ops/empty.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace {

struct Taken {
  unsigned char* data;
  size_t bytes;
  unsigned char mark;

  [[nodiscard]] bool is_whole() const {
    return std::all_of(data, data + bytes, [this](unsigned char c) { return c == mark; });
  }
};

} // namespace

TEST_CASE("a heap: blocks never overlap, and what is freed is one piece again") {
  mh::Heap heap;
  std::mt19937 random(7);
  std::vector<Taken> taken;
  for (int i = 0; i < 4000; ++i) {
    if (taken.size() > 40 || (!taken.empty() && random() % 3 == 0)) {
      std::swap(taken[random() % taken.size()], taken.back());
      CHECK(taken.back().is_whole());
      CHECK(heap.give(taken.back().data) == taken.back().bytes);
      taken.pop_back();
      continue;
    }
    const size_t bytes = random() % (size_t{1} << (random() % 20 + 1));
    const auto mark = static_cast<unsigned char>(random());
    auto* data = static_cast<unsigned char*>(heap.take(bytes));
    CHECK(reinterpret_cast<uintptr_t>(data) % mh::Heap::kAlignment == 0);
    CHECK(heap.owns(data));
    std::memset(data, mark, bytes);
    taken.push_back({data, bytes, mark});
  }
  for (const auto& block : taken) {
    CHECK(block.is_whole());
    (void)heap.give(block.data);
  }
  const auto requests = heap.requests();
  void* all = heap.take(heap.held());
  CHECK(heap.requests() == requests);
  (void)heap.give(all);
  heap.trim();
  all = heap.take(heap.held());
  std::memset(all, 1, heap.held());
  CHECK(heap.requests() == requests);
}

TEST_CASE("a heap says what it cannot get") {
  mh::Heap heap;
  CHECK_THROWS_AS((void)heap.take(size_t{1} << 60), mh::OutOfMemory);
  (void)heap.give(heap.take(1)); // and goes on
}

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
      CHECK(mh::allocator_counts().used_bytes == before.used_bytes + bytes);
    }
    CHECK(mh::allocator_counts().used_bytes == before.used_bytes);
    const auto held = mh::allocator_counts().held_bytes;
    const auto again = at::empty({bytes}, at::kByte);
    CHECK(reinterpret_cast<uintptr_t>(again.data_ptr()) % 64 == 0);
    CHECK(mh::allocator_counts().held_bytes == held);
  }
  CHECK(at::empty({0}).data_ptr() == nullptr);
}
