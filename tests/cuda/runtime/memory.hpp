#pragma once
/// Memory of the pretended GPUs and pinned memory of the host.
///
/// Device memory is address space without access: a host function that follows a device's pointer
/// is stopped by a signal, and a tensor of any size costs nothing. A copy from it is therefore
/// zero, except for numbers that a test plants: EMPTY_CUDA_PLANT="8,16,24;3,5" answers each copy of
/// 3 int64 (24 bytes) with the first list, each of 2 with the second.

#include <cstddef>

namespace empty {

enum class Memory { device, pinned, pageable };

/// New memory; counts the peak. Null if the device has no room left.
void* take(size_t bytes, Memory kind, int device);

void drop(void* start);

/// Memory that the program allocated and pins, or pins no longer.
void pin(void* start, size_t bytes);
void unpin(void* start);

/// The memory that an address belongs to, and its device.
Memory kind_of(const void* address, int* device = nullptr);

/// Bytes of a device that are free.
size_t free_bytes(int device);

/// Fills in the bytes that a copy from a device brings.
void fetch(void* to, size_t bytes);

} // namespace empty
