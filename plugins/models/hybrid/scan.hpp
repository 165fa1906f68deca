#pragma once
/// State-space duality: the recurrence of Mamba-2, of whole chunks of tokens at once.
///
///   h[t] = exp(log_decay[t]) h[t - 1] + dt[t] x[t] b[t]ᵀ      for each head, h [dim, state]
///   y[t] = h[t] c[t]
///
/// Between two tokens of a chunk lies the product of the decays, so that y of a chunk is a matrix
/// times x, plus what it reads from the state before the chunk; and a chunk adds to the state a
/// product of two matrices. Heads of a group share b and c.
///
/// Source:  Dao and Gu, "Transformers are SSMs", arXiv:2405.21060, section 6

#include "chunks.hpp"

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace mh::hybrid {

/// The inputs of the recurrence.
///
/// Shapes:  x [seq, batch, heads, dim]; dt, log_decay [seq, batch, heads]; b, c [seq, batch,
///          groups, state]; starts bool [seq, batch]: tokens that begin a document, which nothing
///          of those before reaches; undefined where there are none
/// Dtype:   x, b, c any float; dt, log_decay float32, or float64 if x is; computed in theirs, but
///          bf16 is multiplied as bf16, summed in float32, on a CPU that has instructions for it
struct ScanInputs {
  at::Tensor x, dt, log_decay, b, c, starts;
  at::DeviceType target = at::kCPU; ///< type that kernels are chosen for, on the Meta device too
};

/// How each chunk changes the state, h = decay h + update.
///
/// Shapes:  -> decays [chunks, batch, heads], updates [chunks, batch, heads, dim, state]
/// Memory:  saves its inputs
[[nodiscard]] std::pair<at::Tensor, at::Tensor>
chunk_updates(const ScanInputs& in, const std::vector<TokenRun>& chunks);

/// The outputs of each chunk's tokens, given `states` before the chunks.
///
/// Shapes:  states [chunks, batch, heads, dim, state] -> y [seq, batch, heads, dim]
/// Dtype:   y as dt
/// Memory:  saves its inputs and y
[[nodiscard]] at::Tensor
chunk_outputs(const ScanInputs& in, const at::Tensor& states, const std::vector<TokenRun>& chunks);

} // namespace mh::hybrid
