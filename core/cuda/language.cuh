#pragma once
/// How a kernel starts. A CPU's compiler gets that, and the words of the language, from the header
/// that MH_KERNEL_LANGUAGE names: tests/cuda/kernels/fibers.hpp runs kernels,
/// tests/cuda/runtime/launches.hpp counts them. So one source serves all.

#include "core/cuda/table.hpp"

namespace mh::cuda {

constexpr int kThreads = 256; ///< threads of a block, in kernels whose work is reading and writing

} // namespace mh::cuda

#ifdef __CUDACC__

#include <cuda_runtime.h>

/// Before a loop: so many of its rounds are written out.
#define MH_UNROLL(rounds) MH_PRAGMA(unroll rounds)
#define MH_PRAGMA(text) _Pragma(#text)

namespace mh::cuda {

/// Starts `kernel` over this many blocks of threads.
template <class Call>
const char* launch(
    const char*, void (*kernel)(Call), int64_t blocks, int threads, const Call& call, void* stream
) {
  if (blocks > 0) {
    kernel<<<static_cast<unsigned>(blocks), threads, 0, static_cast<cudaStream_t>(stream)>>>(call);
  }
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

} // namespace mh::cuda

#else
#define MH_UNROLL(rounds)
#include MH_KERNEL_LANGUAGE
#endif
