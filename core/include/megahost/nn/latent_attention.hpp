#pragma once
/// Multi-head latent attention: keys and values of all heads are made from one narrow latent, and
/// one rotated key is shared by all heads (DeepSeek-V2 and V3).

#include "megahost/builder.hpp"
#include "megahost/context.hpp"
#include "megahost/export.hpp"
#include "megahost/nn/attention.hpp"
#include "megahost/nn/linear.hpp"
#include "megahost/nn/norm.hpp"
#include "megahost/nn/rotary.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace mh {

struct LatentAttentionSpec {
  Axis embed;
  int64_t heads = 0;
  int64_t head_dim = 0;            ///< elements of a query or key, without the rotated ones
  int64_t value_dim = 0;           ///< elements of a value, at most head_dim + rotary.dim
  std::optional<int64_t> q_rank{}; ///< width of the queries' latent; absent: from x itself
  int64_t kv_rank = 0;             ///< width of the latent of keys and values
  RotarySpec rotary{};             ///< `dim` elements are added to each query and key
  double score_scale = 1;          ///< scores' factor, times 1 / sqrt(head_dim + rotary.dim)
  double norm_eps = 1e-6;          ///< epsilon of the latents' RMSNorms
  AttentionMask mask{};
  double dropout = 0;                ///< share of attention probabilities that are dropped
  double std = 0.02, out_std = 0.02; ///< initial weights
};

/// q = up(norm(down(x))), [k, v] = up(norm(down(x))), rotated parts in addition to them, core
/// attention and output projection.
///
/// Rotated elements lie in pairs of neighbours, as in DeepSeek's weights. Heads are split like
/// those of other attention; latents lie like the residual stream.
///
/// Parameters: `q_down`, `kv_down`, `k_rope`, `q_up` (`q` without a latent), `kv_up`, `out`
/// (weight); `q_norm.weight`, `kv_norm.weight`. Rows of `q_up`: for each head head_dim, then the
/// rotated; of `kv_up`: for each head the key's, then the value's.
/// Shapes:  x [seq, batch, embed] -> the same
/// Throws:  mh::Error for values wider than queries
/// Source:  arXiv:2405.04434, section 2.1; arXiv:2412.19437, section 2.1.1
class MH_API LatentAttention : public AttentionPart {
public:
  LatentAttention(Builder& builder, const LatentAttentionSpec& spec);
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, StepContext& context) const override;

  [[nodiscard]] bool reads_cache() const override { return spec_.mask.causal; }

private:
  [[nodiscard]] at::Tensor queries(
      const at::Tensor& x, const at::Tensor& latent, const at::Tensor& table, StepContext& context
  ) const;

  LatentAttentionSpec spec_;
  std::string name_;
  Linear down_; // q_down if there is a latent of queries, kv_down, k_rope
  std::unique_ptr<Norm> q_norm_;
  std::unique_ptr<Norm> kv_norm_;
  Linear q_up_;
  Linear kv_up_;
  Linear out_;
  AttentionDropout dropout_;
};

} // namespace mh
