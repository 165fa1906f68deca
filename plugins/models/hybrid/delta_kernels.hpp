#pragma once
/// The delta rule of delta_rule.hpp on a CPU: chunks whose matrices stay in the caches, compiled for
/// each instruction set as the core's kernels are.

#include "chunk_kernels.hpp"

namespace mh::kernels {

/// One call as plain numbers and pointers: those that its kernel reads or writes. All but q, k and v
/// are contiguous. A group is the value heads of a key head.
struct DeltaCall {
  int64_t batch, heads, groups, key_dim, dim;
  int64_t longest; ///< rows of the longest chunk
  const ChunkRows* chunks;
  Strided q, k, v;               ///< [seq, batch, groups, key_dim]; [seq, batch, heads, dim]
  const float *beta, *log_decay; ///< [seq, batch, heads]
  const bool* starts;            ///< [seq, batch]; may be null
  float query_scale, length_eps; ///< q times query_scale / sqrt(|q|² + length_eps)

  /// -w and u side by side, in the type of products: [chunks, batch, heads, longest, key_dim + dim].
  void* solved = nullptr;
  void* inverse =
      nullptr; ///< the triangular matrix's inverse: [chunks, batch, heads, longest, longest]
  float* transitions = nullptr;  ///< [chunks, batch, heads, key_dim, key_dim]
  float* updates = nullptr;      ///< [chunks, batch, heads, key_dim, dim]
  const float* states = nullptr; ///< the same
  float* y = nullptr;            ///< [seq, batch, heads, dim]

  const float *dtransitions = nullptr, *dupdates = nullptr, *dy = nullptr; ///< incoming gradients
  void* dsolved = nullptr; ///< written by outputs_backward, read by solve_backward
  float* dstates = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  float *dbeta = nullptr, *dlog_decay = nullptr;
};

struct DeltaKernels {
  ChunkKernel<DeltaCall> solve, solve_backward, outputs, outputs_backward;
  size_t (*bytes)(const DeltaCall&); ///< the size of a thread's memory
};

} // namespace mh::kernels
