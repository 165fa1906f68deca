#pragma once
/// Memory for tensors on the CPU that goes back to the system only when it is told to.
///
/// A training step asks for the same sizes again and again. The system's allocator returns large
/// blocks to the kernel and gets them back page by page, zeroed: a tenth of a step. Here a freed
/// block waits for the next request of about its size; large blocks are asked to be huge pages.

#include <cstddef>
#include <cstdint>
#include <new>

namespace mh {

/// The system refused a tensor's memory.
class OutOfMemory : public std::bad_alloc {
public:
  explicit OutOfMemory(size_t bytes)
      : bytes_(bytes) {}

  [[nodiscard]] size_t bytes() const { return bytes_; }

private:
  size_t bytes_;
};

struct AllocatorCounts {
  int64_t requests = 0;        ///< by tensors and workspaces
  int64_t system_requests = 0; ///< of those, what the system was asked for
  int64_t held_bytes = 0;      ///< from the system
  int64_t used_bytes = 0;      ///< of them, in use
  int64_t asked_bytes = 0;     ///< what was asked for of what is in use: without rounding
  int64_t peak_bytes = 0;      ///< the most of these since `reset_peak_bytes`
};

/// Makes all CPU tensors from now on use it; later calls do nothing.
void install_caching_allocator();

/// Gives what no tensor uses back to the system: between phases of a run that need other sizes.
void release_unused_memory();

[[nodiscard]] AllocatorCounts allocator_counts();

void reset_peak_bytes();

} // namespace mh
