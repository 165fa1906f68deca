#pragma once
/// The mixer of gated DeltaNet: a recurrence whose tokens write into the state, at a key, what is
/// missing there.

#include "convolution.hpp"

#include <megahost/builder.hpp>
#include <megahost/context.hpp>
#include <megahost/nn/chunk_states.hpp>
#include <megahost/nn/linear.hpp>
#include <megahost/nn/norm.hpp>
#include <megahost/nn/tokens_before.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace mh::hybrid {

struct DeltaSpec {
  Axis embed;
  int64_t key_heads = 0, heads = 0; ///< heads of queries and keys, and of values
  int64_t key_dim = 128, dim = 128; ///< elements of such heads
  int64_t taps = 4;                 ///< taps of the convolution
  bool bias = false;                ///< both linear layers have a bias
  double norm_eps = 1e-5;
  int64_t chunk = 64; ///< tokens that are computed at once
  double std = 0.02, out_std = 0.02;
};

/// From x: z, v, q, k, beta and dt; v, q and k pass the convolution; then
///
///   S[t] = exp(dt a) S[t - 1],  S[t] += k (sigmoid(beta) (v - S[t]ᵀ k))ᵀ,  y[t] = S[t]ᵀ q
///   out(norm(y) silu(z))
///
/// with q and k of the lengths 1 / sqrt(key_dim) and 1, dt = softplus(dt + dt_bias) and
/// a = -exp(a_log), numbers of each head. The norm is of each head by itself.
///
/// Parameters: `z`, `v`, `q`, `k`, `beta`, `dt`, `out` (weight, bias); `convolution.v`, `.q`, `.k`
/// (weight); `dt_bias`, `a_log` [heads]; `norm.weight` [dim]
/// Shapes:  x [seq, batch, embed] -> the same
/// Ranks:   heads are split as attention's are; states are passed along ranks that hold other
///          tokens (ChunkStates)
/// Source:  arXiv:2412.06464; queries and keys shared by heads as in Qwen3-Next
class DeltaNet {
public:
  DeltaNet(Builder& builder, const DeltaSpec& spec);
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, StepContext& context) const;

private:
  /// The recurrence of the packed v, q, k, and of beta and dt.  [seq, batch, heads, dim]
  [[nodiscard]] at::Tensor recur(
      const at::Tensor& vqk,
      const at::Tensor& beta,
      const at::Tensor& dt,
      const at::Tensor& documents,
      StepContext& context
  ) const;

  DeltaSpec spec_;
  Linear in_;
  Convolution convolution_;
  Parameter *dt_bias_, *a_log_;
  AllTokens all_;
  ChunkStates states_;
  Norm norm_;
  Linear out_;
};

} // namespace mh::hybrid
