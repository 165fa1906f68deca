#include "core/memory/caching_allocator.hpp"

#include "core/memory/heap.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <malloc.h>

#include <algorithm>
#include <mutex>

namespace mh {

namespace {

constexpr size_t kSmall = size_t{1} << 20; // smaller ones live apart, out of the large ones' gaps

class CachingAllocator : public c10::Allocator {
public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, nullptr, &release, at::kCPU};
    }
    const std::lock_guard lock(mutex_);
    void* data = (bytes < kSmall ? small_ : large_).take(bytes);
    counts_.requests += 1;
    counts_.used_bytes += static_cast<int64_t>(bytes);
    counts_.peak_bytes = std::max(counts_.peak_bytes, counts_.used_bytes);
    return {data, data, &release, at::kCPU};
  }

  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }

  [[nodiscard]] AllocatorCounts counts() {
    const std::lock_guard lock(mutex_);
    AllocatorCounts counts = counts_;
    counts.system_requests = small_.requests() + large_.requests();
    counts.held_bytes = static_cast<int64_t>(small_.held() + large_.held());
    return counts;
  }

  void release_unused() {
    const std::lock_guard lock(mutex_);
    small_.trim();
    large_.trim();
    malloc_trim(0);
  }

  void reset_peak() {
    const std::lock_guard lock(mutex_);
    counts_.peak_bytes = counts_.used_bytes;
  }

  static CachingAllocator& instance() {
    static auto* const kInstance = new CachingAllocator; // outlives every tensor
    return *kInstance;
  }

private:
  static void release(void* data) {
    if (data == nullptr) {
      return;
    }
    auto& self = instance();
    const std::lock_guard lock(self.mutex_);
    auto& heap = self.small_.owns(data) ? self.small_ : self.large_;
    self.counts_.used_bytes -= static_cast<int64_t>(heap.give(data));
  }

  std::mutex mutex_;
  Heap small_, large_;
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
