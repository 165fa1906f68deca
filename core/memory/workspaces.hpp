#pragma once
/// Memory for the threads of one parallel loop, asked for at once: what a step asks for does not
/// depend on which thread comes first.

#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>

#include <cstddef>

namespace mh::ops {

class Workspaces {
public:
  explicit Workspaces(size_t bytes)
      : bytes_((bytes + 63) / 64 * 64)
      , alone_(at::in_parallel_region())
      , memory_(c10::GetAllocator(at::kCPU)->allocate(
            bytes_ * (alone_ ? 1 : static_cast<size_t>(at::get_num_threads()))
        )) {}

  /// The calling thread's part; call inside the loop.
  [[nodiscard]] void* mine() const {
    const auto index = alone_ ? 0 : static_cast<size_t>(at::get_thread_num());
    return static_cast<char*>(memory_.get()) + index * bytes_;
  }

private:
  size_t bytes_;
  bool alone_;
  c10::DataPtr memory_;
};

} // namespace mh::ops
