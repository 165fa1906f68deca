#pragma once
/// Parts that the kernels of chunked recurrences share: rows of chunks, and tables of kernels.

#include "core/level/attention_call.hpp"

#include <cstddef>
#include <cstdint>

namespace mh::kernels {

/// Rows of one chunk.
struct ChunkRows {
  int64_t first, count;
};

/// A kernel over tasks (chunk, sample, group) from begin to end; `memory` is one thread's own. Sums
/// are float32, each in one order, whatever the number of threads.
template <class Call>
using ChunkKernel =
    void (*)(const Call&, const ProductKernels&, void* memory, int64_t begin, int64_t end);

template <class Kernels>
struct ByTypes {
  Kernels fp32;  ///< float tensors and products
  Kernels bf16;  ///< bf16 tensors and products
  Kernels mixed; ///< bf16 tensors, float products: for CPUs that lack the others
};

} // namespace mh::kernels
