#pragma once
/// Memory for tensors on the CPU that goes back to the system only when it is told to.
///
/// A training step asks for the same sizes again and again. The system's allocator returns large
/// blocks to the kernel and gets them back page by page, zeroed: a tenth of a step. Here what is
/// freed waits in a heap of huge pages for the next request.

#include <cstddef>
#include <cstdint>

namespace mh {

struct AllocatorCounts {
  int64_t requests = 0;        ///< by tensors and workspaces
  int64_t system_requests = 0; ///< how often the system was asked for more
  int64_t held_bytes = 0;      ///< from the system
  int64_t used_bytes = 0;      ///< bytes of these that are asked for and in use
  int64_t peak_bytes = 0;      ///< the most of these since `reset_peak_bytes`
};

/// Makes all CPU tensors from now on use it; later calls do nothing.
void install_caching_allocator();

/// Gives what no tensor uses back to the system: between phases of a run that need other sizes.
void release_unused_memory();

[[nodiscard]] AllocatorCounts allocator_counts();

void reset_peak_bytes();

} // namespace mh
