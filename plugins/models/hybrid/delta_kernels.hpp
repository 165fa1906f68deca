#pragma once
/// The delta rule of delta_rule.hpp on a CPU: chunks whose matrices stay in the caches, compiled for
/// each instruction set as the core's kernels are.

#include "chunk_kernels.hpp"

namespace mh::kernels {

/// One call as plain numbers and pointers: those that its kernel reads or writes. All but q, k and v
/// are contiguous. A group is the value heads of a key head.
struct DeltaCall {
  int64_t batch, heads, groups, key_dim, dim;
  int64_t longest, count; ///< rows of the longest chunk, chunks
  const ChunkRows* chunks;
  Strided q, k, v;               ///< [seq, batch, groups, key_dim]; [seq, batch, heads, dim]
  const float *beta, *log_decay; ///< [seq, batch, heads]
  const bool* starts;            ///< [seq, batch]; may be null
  float query_scale, length_eps; ///< q times query_scale / sqrt(|q|² + length_eps)

  /// In the type of products: -w and u side by side, [chunks, batch, heads, longest, key_dim + dim];
  /// the inverse of the triangular matrix, [chunks, batch, heads, longest, longest]; the states
  /// before chunks and what tokens write to them, u - w S.
  void *solved = nullptr, *inverse = nullptr, *states = nullptr, *writes = nullptr;
  float* transitions = nullptr; ///< [chunks, batch, heads, key_dim, key_dim], or null: not wanted
  float* updates = nullptr;     ///< [chunks, batch, heads, key_dim, dim]
  float* y = nullptr;           ///< [seq, batch, heads, dim]

  /// Incoming gradients; those of `solved` only with those of transitions.
  const float *dtransitions = nullptr, *dupdates = nullptr, *dy = nullptr;
  void* dsolved = nullptr;
  void *dstates = nullptr, *dwrites = nullptr; ///< written by outputs_backward
  void* du = nullptr;                          ///< the whole gradient of writes; for solve_backward
  void* behind = nullptr; ///< gradients of the states behind chunks; for solve_backward
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  float *dbeta = nullptr, *dlog_decay = nullptr;
};

/// Tasks of pass and pass_backward are heads (sample, head), whose chunks follow each other.
struct DeltaKernels {
  ChunkKernel<DeltaCall> solve, solve_backward, pass, pass_backward, outputs, outputs_backward;
  size_t (*bytes)(const DeltaCall&); ///< the size of a thread's memory
};

} // namespace mh::kernels
