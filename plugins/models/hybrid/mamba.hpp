#pragma once
/// The mixer of Mamba-2: a recurrence whose decay, input and output depend on the tokens.

#include "convolution.hpp"
#include "gated_norm.hpp"

#include <megahost/builder.hpp>
#include <megahost/context.hpp>
#include <megahost/nn/chunk_states.hpp>
#include <megahost/nn/linear.hpp>
#include <megahost/nn/tokens_before.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace mh::hybrid {

struct MambaSpec {
  Axis embed;
  int64_t heads = 0, head_dim = 64;
  int64_t groups = 1;  ///< groups of heads, which share b, c and a norm
  int64_t state = 128; ///< numbers that each element of a head keeps
  int64_t taps = 4;    ///< taps of the convolution
  bool conv_bias = true;
  bool bias = false;     ///< both linear layers have a bias
  double least_step = 0; ///< smallest dt
  double norm_eps = 1e-5;
  int64_t chunk = 64; ///< tokens that are computed at once
  double std = 0.02, out_std = 0.02;
};

/// From x: z, x, b, c and dt; x, b and c pass the convolution; then
///
///   h[t] = exp(dt a) h[t - 1] + dt x bᵀ,  y[t] = h[t] c + d x;  out(norm(y silu(z)))
///
/// with dt = softplus(dt + dt_bias) and a = -exp(a_log), numbers of each head.
///
/// Parameters: `z`, `x`, `b`, `c`, `dt`, `out` (weight, bias); `convolution.x`, `.b`, `.c` (weight,
/// bias); `dt_bias`, `a_log`, `d` [heads]; `norm.weight` [heads * head_dim]
/// Shapes:  x [seq, batch, embed] -> the same
/// Ranks:   heads and groups are split as attention's are; states are passed along ranks that hold
///          other tokens (ChunkStates)
/// Source:  arXiv:2405.21060, section 7
class Mamba {
public:
  Mamba(Builder& builder, const MambaSpec& spec);
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, StepContext& context) const;

private:
  MambaSpec spec_;
  Linear in_;
  Convolution convolution_;
  Parameter *dt_bias_, *a_log_, *d_;
  AllTokens all_;
  ChunkStates states_;
  GatedNorm norm_;
  Linear out_;
};

} // namespace mh::hybrid
