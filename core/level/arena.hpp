#pragma once
/// One block of memory cut into parts.

#include <cstddef>
#include <cstdint>

namespace mh::kernels::MH_LEVEL {

/// Hands out parts of one block of memory, each on a cache line of its own.
class Arena {
public:
  explicit Arena(void* memory)
      : next_(static_cast<char*>(memory)) {}

  [[nodiscard]] size_t used(const void* memory) const {
    return static_cast<size_t>(next_ - static_cast<const char*>(memory));
  }

  template <class T>
  T* take(int64_t count) {
    auto* part = reinterpret_cast<T*>(next_);
    next_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return part;
  }

private:
  char* next_;
};

} // namespace mh::kernels::MH_LEVEL
