#pragma once
/// The gated delta rule, of whole chunks of tokens at once.
///
///   S[t] = exp(log_decay[t]) S[t - 1],  S[t] += k[t] (beta[t] (v[t] - S[t]ᵀ k[t]))ᵀ
///   y[t] = S[t]ᵀ q[t]                                 for each head, S [key dim, value dim]
///
/// A token writes only what its key does not read already, so that the tokens of a chunk depend on
/// each other by a triangular system, whose solution (the WY representation) is linear in the state
/// before the chunk: the chunk writes u - w S. The state behind it is then a matrix times S plus
/// another, and all chunks are computed at once but for passing S along. Where whole samples lie on
/// a CPU, delta_cpu.hpp passes it without that matrix.
///
/// Source:  Yang et al., "Gated Delta Networks", arXiv:2412.06464, section 3.3; "Parallelizing
///          Linear Transformers with the Delta Rule", arXiv:2406.06484, section 3.2

#include <megahost/placement.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace mh::hybrid {

/// The inputs of the recurrence. It works with q / (|q| sqrt(key dim)) and k / |k|, where a square
/// below 1e-6 is added to those of a length; neighbouring value heads share a key head.
///
/// Shapes:  q, k [seq, batch, key heads, key dim]; v [seq, batch, heads, value dim]; beta,
///          log_decay [seq, batch, heads]; starts bool [seq, batch]: tokens that begin a document,
///          which nothing of those before reaches; undefined where there are none
/// Dtype:   q, k, v any float; beta, log_decay float32, or float64 if v is; computed in theirs, but
///          bf16 is multiplied as bf16, summed in float32, on a CPU that has instructions for it
struct DeltaInputs {
  at::Tensor q, k, v, beta, log_decay, starts;
  at::DeviceType target = at::kCPU; ///< type that kernels are chosen for, on the Meta device too
};

/// Added to the square of a length.
inline constexpr double kLengthEps = 1e-6;

/// All chunks next to each other, C rows each: shorter ones have rows behind them that write nothing.
///
/// Shapes:  q, k [chunks, batch, key heads, C, key dim], of their lengths; since [chunks, batch,
///          heads, C], sums of log_decay from the chunk's beginning on; documents [chunks, batch, C]:
///          how many began in the chunk so far, or undefined; w [chunks, batch, heads, C, key dim]
///          and u [chunks, batch, heads, C, value dim]: a chunk writes u - w S;
///          transitions [chunks, batch, heads, key dim, key dim] and updates [chunks, batch, heads,
///          key dim, value dim]: the state behind a chunk is transition S + update
struct DeltaChunks {
  at::Tensor q, k, since, documents, w, u, transitions, updates;

  /// The kernels of delta_cpu.hpp use these instead of all but the last two: the inputs; and -w and u
  /// side by side, [chunks, batch, heads, C, key dim + value dim].
  DeltaInputs in{};
  at::Tensor solved{};
};

/// The chunks, whose rows are `rows`.
///
/// Memory:  saves q, k, v, beta, the decays, w, u and a C by C matrix of each chunk and head
[[nodiscard]] DeltaChunks delta_chunks(const DeltaInputs& in, const std::vector<TokenRun>& rows);

/// The outputs of all tokens, given `states` before the chunks.
///
/// Shapes:  states as updates -> y [seq, batch, heads, value dim]
/// Memory:  saves what `of` has
[[nodiscard]] at::Tensor
delta_outputs(const DeltaChunks& of, const at::Tensor& states, const std::vector<TokenRun>& rows);

/// The outputs of tokens that are alone, each with an empty state.
[[nodiscard]] at::Tensor delta_alone(const DeltaInputs& in);

} // namespace mh::hybrid
