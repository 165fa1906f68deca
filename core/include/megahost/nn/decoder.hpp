#pragma once
/// The decoder-only transformer: GPT, Llama and most of what came after them, as choices of one
/// block.
///
///   x + attention(norm(x)), then x + feed_forward(norm(x)); a final norm; scores of the next token
///
/// with the norms elsewhere, or both parts reading the same x or the same norm(x), if the config says
/// so.
///
/// A plugin for such a model is its defaults and its Hugging Face names (plugins/models/llama).

#include "megahost/architecture.hpp"
#include "megahost/export.hpp"
#include "megahost/nn/attention.hpp"
#include "megahost/nn/decoder_blocks.hpp"
#include "megahost/nn/decoder_config.hpp"
#include "megahost/nn/feed_forward.hpp"
#include "megahost/nn/norm.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace mh {

/// Adds the names of layer `layer`'s feed-forward; `theirs` and `ours` are what names begin with.
using FeedForwardNames = std::function<void(
    int64_t layer, const std::string& theirs, const std::string& ours, std::vector<HfTensor>& map
)>;

/// Adds the names of one dense feed-forward; `theirs` and `ours` are what its names begin with,
/// "model.layers.0.mlp." and "layers.0.mlp.".
MH_API void add_feed_forward_names(
    const DecoderConfig& config,
    const std::string& theirs,
    const std::string& ours,
    std::vector<HfTensor>& map
);

/// The names of `transformers` Llama and its relatives; empty where the fields have no counterpart.
/// A null `feed_forward` is the dense one. The modules of multi-token prediction have none, unless
/// `predicts_further`: then those of DeepSeek-V3, which are layers behind the last.
[[nodiscard]] MH_API std::vector<HfTensor> llama_names(
    const DecoderConfig& config,
    const FeedForwardNames& feed_forward = nullptr,
    bool predicts_further = false
);

/// The names of megatron-core's GPTModel; empty where the fields describe another model. Without
/// `feed_forward` those of the dense one.
[[nodiscard]] MH_API std::vector<HfTensor>
megatron_names(const DecoderConfig& config, const FeedForwardNames& feed_forward = nullptr);

/// Adds what megatron-core calls one dense feed-forward; `theirs` and `ours` are what its names
/// begin with, "decoder.layers.0.mlp." and "layers.0.mlp.".
MH_API void add_megatron_feed_forward(
    const DecoderConfig& config,
    const std::string& theirs,
    const std::string& ours,
    std::vector<HfTensor>& map
);

/// A decoder of the fields of DecoderConfig. A plugin that wants another norm, attention or
/// feed-forward in its layers overrides what makes that part; one that wants another block overrides
/// what makes that, or takes the blocks of decoder_blocks.hpp into an architecture of its own.
///
/// Parameters: by global name; N is a layer's number, `rope` is rope_head_dim, which q
/// has in each head too with kv_rank. Experts have names of their own (nn/experts.hpp).
///
///   embedding.word.weight              [vocab, hidden]
///   embedding.position.weight          [seq_length, hidden]           positions = "learned"
///   layers.N.attention_norm.weight     [hidden]
///   layers.N.attention_norm.bias       [hidden]                       norm = "layernorm"
///   layers.N.attention.q.weight        [heads * head_dim, hidden]     without q_rank
///   layers.N.attention.q.bias          [heads * head_dim]             qkv_bias
///   layers.N.attention.k.weight        [kv_heads * head_dim, hidden]  without kv_rank
///   layers.N.attention.k.bias          [kv_heads * head_dim]          qkv_bias
///   layers.N.attention.v.weight        [kv_heads * head_dim, hidden]  without kv_rank
///   layers.N.attention.v.bias          [kv_heads * head_dim]          qkv_bias
///   layers.N.attention.q_norm.weight   [head_dim] or [q_rank]         qk_norm, or q_rank
///   layers.N.attention.k_norm.weight   [head_dim]                     qk_norm; over "all_heads"
///                                      these have the rows of q and of k, over "own_head" a row
///                                      of head_dim for each head of q and of k
///   layers.N.attention.q_norm.bias     [head_dim]                     qk_norm_kind = "layernorm"
///   layers.N.attention.k_norm.bias     [head_dim]                     the same
///   layers.N.attention.sinks           [heads]                        sinks
///   layers.N.attention.gate.weight     [heads * head_dim, hidden]     attention_gate
///   layers.N.attention.gate.bias       [heads * head_dim]             attention_gate and qkv_bias
///   layers.N.attention.q_down.weight   [q_rank, hidden]               q_rank
///   layers.N.attention.q_up.weight     [heads * (head_dim + rope), q_rank] q_rank
///   layers.N.attention.kv_down.weight  [kv_rank, hidden]              kv_rank
///   layers.N.attention.k_rope.weight   [rope, hidden]                 kv_rank
///   layers.N.attention.kv_norm.weight  [kv_rank]                      kv_rank
///   layers.N.attention.kv_up.weight    [heads * (head_dim + v_head_dim), kv_rank] kv_rank
///   layers.N.attention.out.weight      [hidden, heads * head_dim]     v_head_dim with kv_rank
///   layers.N.attention.out.bias        [hidden]                       bias
///   layers.N.attention_out_norm.weight [hidden]                       norm_placement = "sandwich"
///   layers.N.mlp_norm.weight           [hidden]                       without shared_norm
///   layers.N.mlp_norm.bias             [hidden]                       the same, norm = "layernorm"
///   layers.N.mlp.up.weight             [ffn_hidden, hidden]
///   layers.N.mlp.up.bias               [ffn_hidden]                   bias
///   layers.N.mlp.gate.weight           [ffn_hidden, hidden]           swiglu, geglu and so on
///   layers.N.mlp.gate.bias             [ffn_hidden]                   bias; the same
///   layers.N.mlp.down.weight           [hidden, ffn_hidden]
///   layers.N.mlp.down.bias             [hidden]                       bias
///   layers.N.mlp_out_norm.weight       [hidden]                       norm_placement = "sandwich"
///   head.norm.weight                   [hidden]                       norm_placement not "post"
///   head.norm.bias                     [hidden]                       the same, norm = "layernorm"
///   head.weight                        [vocab, hidden]                tied = false
///   head.bias                          [vocab]                        head_bias
///
/// and with mtp_layers of module K, from 0 (norms with their biases):
///
///   head.mtp.K.embedding_norm.weight   [hidden]
///   head.mtp.K.hidden_norm.weight      [hidden]
///   head.mtp.K.projection.weight       [hidden, 2 hidden]
///   head.mtp.K.layer.*                 as layers.N.*, of the last layer
///   head.mtp.K.norm.weight             [hidden]                       norm_placement not "post"
///
/// Source:  multi-token prediction: arXiv:2412.19437 section 2.2; the final norm before its first
///          module, and the order of the projection's halves, as in Megatron-LM
class MH_API Decoder : public Architecture {
public:
  /// Throws:  mh::Error if neither config nor tokenizer give a vocabulary
  Decoder(const DecoderConfig& config, const Args& args);

  [[nodiscard]] int64_t layers() const override { return config_.layers; }

  [[nodiscard]] int64_t vocab() const override { return *config_.vocab; }

  [[nodiscard]] std::vector<ShiftedArray> shifted_arrays() const override;

  [[nodiscard]] std::unique_ptr<Block> embedding(Builder& builder) const override;
  [[nodiscard]] std::unique_ptr<Block> layer(int64_t index, Builder& builder) const override;
  [[nodiscard]] std::unique_ptr<Block> head(Builder& builder) const override;

  /// Modules of multi-token prediction, from initial values.
  [[nodiscard]] std::vector<Upcycled> upcycled() const override;

protected:
  /// The configuration with every absent field filled in.
  [[nodiscard]] const DecoderConfig& config() const { return config_; }

  /// Each norm of the residual stream, the final one too.
  [[nodiscard]] virtual std::unique_ptr<NormPart> norm(Builder& builder) const;

  /// The attention of layer `index`.
  [[nodiscard]] virtual std::unique_ptr<AttentionPart>
  attention(int64_t index, Builder& builder) const;

  /// The feed-forward of layer `index`.
  [[nodiscard]] virtual std::unique_ptr<FeedForwardPart>
  feed_forward(int64_t index, Builder& builder) const;

  /// The spec that the fields describe; without kv_rank.
  [[nodiscard]] AttentionSpec attention_spec(int64_t index) const;

  /// The spec that the fields describe; `hidden` is ffn_hidden.
  [[nodiscard]] FeedForwardSpec feed_forward_spec() const;

private:
  DecoderConfig config_;
  int64_t seq_length_;
};

} // namespace mh
