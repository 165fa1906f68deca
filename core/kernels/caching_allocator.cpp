#include "core/kernels/caching_allocator.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>

namespace mh {

namespace {

constexpr size_t kHeader = 64; // before the data, which stay aligned to cache lines
constexpr size_t kHuge = size_t{2} << 20;

struct Header {
  size_t size;  // of the whole block
  size_t asked; // for the data
};

/// Sizes come in steps of an eighth of a power of two, so that few differ.
size_t rounded(size_t bytes) {
  const size_t step = std::max<size_t>(kHeader, std::bit_floor(bytes) / 8);
  return (bytes + step - 1) / step * step;
}

void* from_system(size_t size) {
  const size_t alignment = size >= kHuge ? kHuge : kHeader;
  void* block = std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (block == nullptr) {
    throw OutOfMemory(size);
  }
  if (size >= kHuge) {
    madvise(block, size, MADV_HUGEPAGE); // where it cannot be, small pages do
  }
  return block;
}

class CachingAllocator : public c10::Allocator {
public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, nullptr, &release, at::kCPU};
    }
    void* data = static_cast<char*>(block(bytes)) + kHeader;
    return {data, data, &release, at::kCPU};
  }

  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }

  [[nodiscard]] AllocatorCounts counts() {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

  void release_unused() {
    const std::lock_guard lock(mutex_);
    for (const auto& [size, block] : free_) {
      counts_.held_bytes -= static_cast<int64_t>(size);
      std::free(block);
    }
    free_.clear();
    malloc_trim(0);
  }

  void reset_peak() {
    const std::lock_guard lock(mutex_);
    counts_.peak_bytes = counts_.asked_bytes;
  }

  static CachingAllocator& instance() {
    static auto* const kInstance = new CachingAllocator; // outlives every tensor
    return *kInstance;
  }

private:
  /// A block for that many bytes of data.
  void* block(size_t asked) {
    const std::lock_guard lock(mutex_);
    void* block = block_of(rounded(asked + kHeader));
    static_cast<Header*>(block)->asked = asked;
    counts_.asked_bytes += static_cast<int64_t>(asked);
    counts_.peak_bytes = std::max(counts_.peak_bytes, counts_.asked_bytes);
    return block;
  }

  void* block_of(size_t size) {
    counts_.requests += 1;
    // The smallest free block that is not much larger.
    if (const auto found = free_.lower_bound(size);
        found != free_.end() && found->first <= size + size / 8) {
      void* block = found->second;
      free_.erase(found);
      counts_.used_bytes += static_cast<int64_t>(static_cast<Header*>(block)->size);
      return block;
    }
    const size_t whole = size >= 8 * kHuge ? (size + kHuge - 1) / kHuge * kHuge : size;
    void* block = from_system(whole);
    static_cast<Header*>(block)->size = whole;
    counts_.system_requests += 1;
    counts_.held_bytes += static_cast<int64_t>(whole);
    counts_.used_bytes += static_cast<int64_t>(whole);
    return block;
  }

  static void release(void* data) {
    if (data == nullptr) {
      return;
    }
    auto* block = static_cast<char*>(data) - kHeader;
    const auto [size, asked] = *reinterpret_cast<Header*>(block);
    auto& self = instance();
    const std::lock_guard lock(self.mutex_);
    self.counts_.asked_bytes -= static_cast<int64_t>(asked);
    self.counts_.used_bytes -= static_cast<int64_t>(size);
    self.free_.emplace(size, block);
  }

  std::mutex mutex_;
  std::multimap<size_t, void*> free_;
  AllocatorCounts counts_;
};

} // namespace

void install_caching_allocator() {
  static std::once_flag once;
  std::call_once(once, [] { c10::SetCPUAllocator(&CachingAllocator::instance()); });
}

void release_unused_memory() {
  CachingAllocator::instance().release_unused();
}

void reset_peak_bytes() {
  CachingAllocator::instance().reset_peak();
}

AllocatorCounts allocator_counts() {
  return CachingAllocator::instance().counts();
}

} // namespace mh
