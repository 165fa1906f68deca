#pragma once
/// Attention with grouped queries to a token's own sequence or to another one. The cache of keys
/// and values for generation is in nn/cache.hpp.

#include "megahost/builder.hpp"
#include "megahost/context.hpp"
#include "megahost/export.hpp"
#include "megahost/nn/cache.hpp"
#include "megahost/nn/linear.hpp"
#include "megahost/nn/norm.hpp"
#include "megahost/nn/relative_bias.hpp"
#include "megahost/nn/rotary.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// The tokens that a query sees, within its document's bounds (the context's array "segments"), and
/// how large their scores become.
struct AttentionMask {
  bool causal = true; ///< itself and those before it
  int64_t window = 0; ///< only the last `window` of these, itself counted; 0: all. Needs causal
  double cap = 0;     ///< scores s become cap tanh(s / cap); 0: they stay. Not with a relative bias
};

/// Dropout of the attention probabilities.
struct AttentionDropout {
  double p = 0;
  uint64_t site = 0;      ///< tells this use from others
  int64_t first_head = 0; ///< global number of the first head
};

/// The rows that a query-key norm is over, and the weights of each.
enum class QueryKeyNorm : uint8_t {
  head,     ///< each head; all share [head_dim] weights
  own_head, ///< each head, by weights of its own
  all_heads ///< all heads together
};

struct AttentionSpec {
  Axis embed;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  bool qkv_bias = false;
  bool bias = false;                   ///< whether the output projection has one
  std::optional<double> qk_norm_eps{}; ///< norm of q and k, before the rotation; absent: none
  QueryKeyNorm qk_norm_over = QueryKeyNorm::head;
  NormKind qk_norm = NormKind::rmsnorm;
  std::optional<RotarySpec> rotary{};
  bool adjacent_pairs = false; ///< elements rotate with a neighbour, not with the other half's
  AttentionMask mask{};
  double dropout = 0;                ///< share of attention probabilities that are dropped
  double std = 0.02, out_std = 0.02; ///< initial weights
  std::optional<double> q_std{};     ///< for the queries' initial weights; `std` if absent
  std::optional<double> scale{};     ///< factor of scores; 1 / sqrt(head_dim) if absent
  std::optional<RelativeBiasSpec> relative_bias{};
  std::optional<double> alibi{}; ///< factor of the slopes of ALiBi's bias; absent: there is none
  bool sinks = false; ///< a learned logit of each query head joins the softmax; it has no value
  bool gate = false;  ///< whether their results are multiplied by sigmoid(gate x)
};

/// softmax(scale q kᵀ + mask) v; `scale` is 1 / sqrt(dim) if absent.
///
/// Shapes:  q [queries, batch, heads, dim]; k, v [keys, batch, kv_heads, dim] -> q's. If there
///          are more keys than queries, the queries are the last of the keys' tokens
/// Memory:  never keeps [queries, keys] scores unless there is dropout or a mask on a device
///          without a fused kernel for it
/// Source:  arXiv:1706.03762, arXiv:2305.13245; windows arXiv:2004.05150
[[nodiscard]] MH_API at::Tensor core_attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const AttentionMask& mask,
    const AttentionDropout& dropout,
    StepContext& context,
    std::optional<double> scale = std::nullopt
);

/// Attention over the tokens of whole samples, wherever strategies put them: the block's part
/// "core_attention". `bias`, if defined, is added to the scaled scores by the distance of key and
/// query; what RelativeBias gives for at least as many tokens as there are keys. `sinks` [heads], if
/// defined, are the logits of one more key of each head, which all queries see and whose value is 0.
///
/// Ranks:   collective over the mesh axis that splits samples, if one does
/// Source:  arXiv:2309.17453 (attention sinks), arXiv:2508.10925 section 2.2 (learned, without a
///          value)
[[nodiscard]] MH_API at::Tensor attend(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const AttentionMask& mask,
    const AttentionDropout& dropout,
    StepContext& context,
    std::optional<double> scale = std::nullopt,
    const at::Tensor& bias = {},
    const at::Tensor& sinks = {}
);

/// Attention over keys and values of another sequence's tokens, all of which a query sees; only
/// those of its document where both sequences have segments. There may be more queries than keys.
///
/// Shapes:  q [queries, batch, heads, dim] of the context's current sequence; k, v [keys, batch,
///          kv_heads, dim] of `memory` -> q's
/// Ranks:   as attend
[[nodiscard]] MH_API at::Tensor cross_attend(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    std::string_view memory,
    const AttentionDropout& dropout,
    StepContext& context,
    std::optional<double> scale = std::nullopt
);

/// The part of a block before its feed-forward: attention of any kind.
///
/// Shapes:  x [seq, batch, embed] -> same
class MH_API AttentionPart {
public:
  virtual ~AttentionPart();
  [[nodiscard]] virtual at::Tensor forward(const at::Tensor& x, StepContext& context) const = 0;

  /// The answer of Block::reads_cache (architecture.hpp).
  [[nodiscard]] virtual bool reads_cache() const { return false; }
};

/// Attention of any kind to what another sequence's tokens became: an encoder's output.
///
/// Shapes:  x [seq, batch, embed], memory [seq of that sequence, batch, embed] -> x's
class MH_API CrossAttentionPart {
public:
  virtual ~CrossAttentionPart();
  [[nodiscard]] virtual at::Tensor
  forward(const at::Tensor& x, const at::Tensor& memory, StepContext& context) const = 0;

  /// The answer of Block::reads_cache (architecture.hpp).
  [[nodiscard]] virtual bool reads_cache() const { return false; }
};

/// Projections, query-key norm, rotary embedding, core attention and output projection.
///
/// Parameters: `q`, `k`, `v`, `gate`, `out` (weight, bias); `q_norm`, `k_norm` (weight, and bias of a kind
/// that has one) [head_dim], or [heads * head_dim] and [kv_heads * head_dim] of all heads together, or
/// [heads, head_dim] and [kv_heads, head_dim] of heads with weights of their own;
/// `relative_bias.weight` [heads, buckets]; `sinks` [heads].
/// Shapes: x [seq, batch, embed] -> the same. Throws: mh::Error for a window without causal
/// attention, for ALiBi with a relative bias or bounded scores, and for weights of each head of a
/// norm with a bias or with 1 + weight.
/// Source:  query-key norm arXiv:2010.04245, of each head as in Qwen 3 (arXiv:2505.09388), of all
///          heads as in OLMo 2 (arXiv:2501.00656); the gate arXiv:2505.06708, form G1; ALiBi
///          arXiv:2108.12409, with the slopes of its reference for any number of heads
class MH_API Attention : public AttentionPart {
public:
  Attention(Builder& builder, const AttentionSpec& spec);
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, StepContext& context) const override;

  [[nodiscard]] bool reads_cache() const override { return spec_.mask.causal; }

private:
  AttentionSpec spec_;
  Linear qkv_;
  Linear out_;
  std::unique_ptr<NormPart> q_norm_, k_norm_;
  std::unique_ptr<RelativeBias> relative_bias_; // or null
  Parameter* sinks_ = nullptr;                  // or null
  AttentionDropout dropout_;
};

/// Queries of a layer's tokens, keys and values of a memory's, core attention without a mask but
/// for documents, and output projection.
///
/// Parameters: `q`, `k`, `v`, `out`, `q_norm`, `k_norm` as Attention.
/// Throws:  mh::Error for a mask, a rotary embedding or a bias by distance: tokens of two sequences
///          have no order; for sinks and a gate
/// Source:  arXiv:1706.03762 section 3.2.3
class MH_API CrossAttention : public CrossAttentionPart {
public:
  /// `memory` is the name of the sequence that is attended to.
  CrossAttention(Builder& builder, const AttentionSpec& spec, std::string_view memory);
  [[nodiscard]] at::Tensor
  forward(const at::Tensor& x, const at::Tensor& memory, StepContext& context) const override;

  [[nodiscard]] bool reads_cache() const override { return true; }

private:
  /// Keys and values of the memory, each [seq of that sequence, batch, kv_heads, dim].
  [[nodiscard]] std::vector<at::Tensor>
  of_memory(const at::Tensor& memory, StepContext& context) const;

  AttentionSpec spec_;
  std::string memory_;
  Linear q_, kv_, out_;
  std::unique_ptr<NormPart> q_norm_, k_norm_;
  AttentionDropout dropout_;
};

} // namespace mh
