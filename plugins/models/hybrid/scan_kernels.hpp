#pragma once
/// The scan of scan.hpp on a CPU: chunks whose matrices stay in the caches, compiled for each
/// instruction set as the core's kernels are.

#include "core/level/attention_call.hpp"

#include <cstddef>
#include <cstdint>

namespace mh::kernels {

/// Rows of one chunk.
struct ScanRows {
  int64_t first, count;
};

/// One call as plain numbers and pointers: those that its kernel reads or writes. All but x, b and
/// c are contiguous.
struct ScanCall {
  int64_t batch, heads, groups, dim, state;
  int64_t longest; ///< rows of the longest chunk
  const ScanRows* chunks;
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

/// Each over tasks (chunk, sample, group) from begin to end; `memory` of `bytes` is one thread's
/// own. Sums are float32, each in one order, whatever the number of threads.
struct ScanKernels {
  using Run =
      void (*)(const ScanCall&, const ProductKernels&, void* memory, int64_t begin, int64_t end);
  Run updates, updates_backward, outputs, outputs_backward;
  size_t (*bytes)(const ScanCall&);
};

struct ScanTable {
  ScanKernels fp32;  ///< float tensors and products
  ScanKernels bf16;  ///< bf16 tensors and products
  ScanKernels mixed; ///< bf16 tensors, float products: for CPUs that lack the others
};

} // namespace mh::kernels
