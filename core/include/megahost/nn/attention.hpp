#pragma once
/// Self-attention with grouped queries.

#include "megahost/builder.hpp"
#include "megahost/context.hpp"
#include "megahost/export.hpp"
#include "megahost/nn/linear.hpp"
#include "megahost/nn/rotary.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace mh {

struct AttentionSpec {
  Axis embed;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  bool qkv_bias = false;
  bool bias = false; ///< of the output product
  std::optional<RotarySpec> rotary;
  double dropout = 0;                ///< of the attention probabilities
  double std = 0.02, out_std = 0.02; ///< initial weights
  bool causal = true;
};

/// softmax(q kᵀ / sqrt(head_dim) + mask) v, causal and within documents (the context's "segments").
///
/// Shapes:  q [seq, batch, heads, dim]; k, v [seq, batch, kv_heads, dim] -> q's
/// Memory:  never keeps [seq, seq] scores unless there is dropout or a document mask on a device
/// without
///          a fused kernel for it
/// Source:  arXiv:1706.03762, arXiv:2305.13245
[[nodiscard]] MH_API at::Tensor core_attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    bool causal,
    double dropout,
    uint64_t dropout_site,
    int64_t first_head,
    StepContext& context
);

/// Projections, rotary embedding, core attention and output product.
///
/// Parameters: `q`, `k`, `v`, `out` (weight, bias). Shapes: x [seq, batch, embed] -> the same.
class MH_API Attention {
public:
  Attention(Builder& builder, const AttentionSpec& spec);
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, StepContext& context) const;

private:
  AttentionSpec spec_;
  Linear qkv_;
  Linear out_;
  uint64_t site_;
  int64_t first_head_ = 0;
};

} // namespace mh
