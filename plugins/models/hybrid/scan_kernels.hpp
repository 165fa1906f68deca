#pragma once
/// The scan of scan.hpp on a CPU: chunks whose matrices stay in the caches, compiled for each
/// instruction set as the core's kernels are.

#include "chunk_kernels.hpp"

#include <cstddef>
#include <cstdint>

namespace mh::kernels {

/// One call as plain numbers and pointers: those that its kernel reads or writes. All but x, b and
/// c are contiguous.
struct ScanCall {
  int64_t batch, heads, groups, dim, state;
  int64_t longest; ///< rows of the longest chunk
  const ChunkRows* chunks;
  Strided x, b, c;             ///< [seq, batch, heads, dim]; [seq, batch, groups, state]
  const float *dt, *log_decay; ///< [seq, batch, heads]
  const bool* starts;          ///< [seq, batch]; may be null

  float* decays = nullptr;       ///< [chunks, batch, heads]
  float* updates = nullptr;      ///< [chunks, batch, heads, dim, state]
  const float* states = nullptr; ///< the same
  float* y = nullptr;            ///< [seq, batch, heads, dim]

  const float *ddecays = nullptr, *dupdates = nullptr, *dy = nullptr; ///< incoming gradients
  float* dstates = nullptr;
  void *dx = nullptr, *db = nullptr, *dc = nullptr;
  float *ddt = nullptr, *dlog_decay = nullptr;
};

struct ScanKernels {
  ChunkKernel<ScanCall> updates, updates_backward, outputs, outputs_backward;
  size_t (*bytes)(const ScanCall&); ///< the size of a thread's memory
};

} // namespace mh::kernels
