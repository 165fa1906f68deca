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
#include "megahost/model_scale.hpp"
#include "megahost/nn/attention.hpp"
#include "megahost/nn/feed_forward.hpp"
#include "megahost/nn/norm.hpp"
#include "megahost/schema.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

struct DecoderConfig {
  int64_t layers = 12;
  int64_t hidden = 768;
  int64_t heads = 12;
  std::optional<int64_t> kv_heads;
  std::optional<int64_t> head_dim;
  std::optional<int64_t> ffn_hidden;
  std::optional<int64_t> vocab;
  std::string norm = "layernorm";
  std::string norm_placement = "pre";
  double norm_eps = 1e-5;
  bool scaled_embedding = false;
  bool parallel_residual = false;
  bool shared_norm = false;
  bool qk_norm = false;
  std::string qk_norm_over = "head";
  std::optional<int64_t> score_dim;
  std::optional<double> score_cap;
  bool sinks = false;
  bool attention_gate = false;
  std::optional<int64_t> kv_rank;
  std::optional<int64_t> q_rank;
  std::optional<int64_t> rope_head_dim;
  std::optional<int64_t> v_head_dim;
  std::string activation = "gelu_tanh";
  std::string positions = "learned";
  double rope_base = 10000;
  double rope_share = 1;
  std::string rope_pairs = "halves";
  std::string rope_scaling = "none";
  double rope_factor = 1;
  double rope_low_freq = 1;
  double rope_high_freq = 4;
  double rope_beta_slow = 1;
  double rope_beta_fast = 32;
  bool rope_truncate = true;
  std::optional<double> rope_attention;
  std::optional<double> rope_mscale;
  std::optional<double> rope_mscale_all_dim;
  int64_t rope_original_length = 8192;
  bool causal = true;
  std::optional<int64_t> window;
  std::vector<std::string> window_pattern;
  std::optional<double> window_rope_base;
  bool bias = true;
  std::optional<bool> qkv_bias;
  bool tied = true;
  bool head_bias = false;
  double logit_scale = 1;
  std::optional<double> logit_cap;
  int64_t mtp_layers = 0;
  double mtp_loss_weight = 0.1;
  double dropout = 0;
  double attention_dropout = 0;
  double init_std = 0.02;
  std::optional<double> embedding_std;
  bool scaled_init = true;
};

/// Sizes of a small decoder in addition to those that the core knows (model_scale.hpp): those of
/// latent attention, and the window.
[[nodiscard]] MH_API Table scaled(const DecoderConfig& whole, const ModelScale& to);

namespace decoder_detail {

/// The fields at which contradictions between fields are reported.
[[nodiscard]] MH_API std::vector<std::string> checked_fields();

[[nodiscard]] MH_API std::vector<std::string> norm_names();
[[nodiscard]] MH_API std::vector<std::string> activation_names();

/// `ffn_hidden` where a recipe does not say: 4 hidden, or 8/3 hidden rounded up to a multiple
/// of 64.
[[nodiscard]] MH_API int64_t default_ffn_hidden(int64_t hidden, const std::string& activation);

/// `vocab` where a recipe does not say: the tokenizer's.
///
/// Throws:  mh::Error if that has none of its own
[[nodiscard]] MH_API int64_t
vocab_of(const std::optional<int64_t>& given, const Architecture::Args& args);

/// The contradiction at a field of kChecked, as a sentence; empty if there is none.
[[nodiscard]] MH_API std::string contradiction(const std::string& field, const DecoderConfig& c);

} // namespace decoder_detail

/// Declares the fields of a config that derives from DecoderConfig, and the checks between them.
template <class C>
void decoder_fields(Fields<C>& f) {
  f.add("layers", &C::layers, "transformer blocks").at_least(1);
  f.add("hidden", &C::hidden, "width of the residual stream").at_least(1);
  f.add("heads", &C::heads, "query heads").at_least(1);
  f.add("kv_heads", &C::kv_heads, "key and value heads; as many as heads if absent").at_least(1);
  f.add("head_dim", &C::head_dim, "elements of a head; hidden / heads if absent").at_least(1);
  f.add(
       "ffn_hidden",
       &C::ffn_hidden,
       "hidden units of the feed-forward; if absent 4 hidden, or 8/3 hidden rounded up to a "
       "multiple of 64 for gated activations"
  )
      .at_least(1);
  f.add("vocab", &C::vocab, "entries of the vocabulary; the tokenizer's if absent").at_least(1);
  f.add("norm", &C::norm, "norm of each part of a block").one_of(decoder_detail::norm_names());
  f.add(
       "norm_placement",
       &C::norm_placement,
       "pre: x + part(norm(x)); post: norm(x + part(x)), no final norm; branch: x + norm(part(x)); "
       "sandwich: x + norm(part(norm(x))), with two norms (Gemma)"
  )
      .one_of({"pre", "post", "branch", "sandwich"});
  f.add("norm_eps", &C::norm_eps, "added to the variance in norms").above(0);
  f.add(
      "parallel_residual",
      &C::parallel_residual,
      "attention and feed-forward both read the block's input, each through its own norm, and are "
      "added to it together (GPT-NeoX)"
  );
  f.add(
      "shared_norm",
      &C::shared_norm,
      "with parallel_residual: attention and feed-forward read one norm of the block's input (Phi, "
      "Falcon 7B, Command-R)"
  );
  f.add(
      "scaled_embedding",
      &C::scaled_embedding,
      "the word embedding is multiplied by sqrt(hidden) (Gemma)"
  );
  f.add("qk_norm", &C::qk_norm, "RMSNorm of queries and keys, before positions rotate them");
  f.add(
       "qk_norm_over",
       &C::qk_norm_over,
       "what the query-key norm is over: each head, or all heads together (OLMo 2)"
  )
      .one_of({"head", "all_heads"});
  f.add(
       "score_dim",
       &C::score_dim,
       "scores of queries and keys are divided by the square root of this; head_dim if absent"
  )
      .at_least(1);
  f.add(
       "score_cap",
       &C::score_cap,
       "a scaled score s of a query and a key becomes cap tanh(s / cap), so that none is beyond the "
       "cap; scores stay if absent (Gemma 2)"
  )
      .above(0);
  f.add(
      "sinks",
      &C::sinks,
      "attention sinks: a learned logit of each query head joins the softmax of its scores and has "
      "no value, so that a token can attend to little (GPT-OSS)"
  );
  f.add(
      "attention_gate",
      &C::attention_gate,
      "what each attention head gives is multiplied by sigmoid(gate x), by a projection of what "
      "attention reads (Qwen3-Next)"
  );
  f.add(
       "kv_rank",
       &C::kv_rank,
       "width of the latent that keys and values of all heads are made from (multi-head latent "
       "attention, as in DeepSeek-V3); usual attention if absent"
  )
      .at_least(1);
  f.add(
       "q_rank",
       &C::q_rank,
       "latent attention: width of the latent that queries are made from; none if absent"
  )
      .at_least(1);
  f.add(
       "rope_head_dim",
       &C::rope_head_dim,
       "latent attention: rotated elements of a query, next to its head_dim, and of the one key "
       "that all heads share; 64 if absent"
  )
      .at_least(2);
  f.add(
       "v_head_dim",
       &C::v_head_dim,
       "latent attention: elements of a head's value; as head_dim if absent"
  )
      .at_least(1);
  f.add("activation", &C::activation, "activation of the feed-forward")
      .one_of(decoder_detail::activation_names());
  f.add("positions", &C::positions, "how tokens know their positions")
      .one_of({"learned", "rope", "none"});
  f.add("rope_base", &C::rope_base, "base of the rotary wavelengths").above(0);
  f.add("rope_share", &C::rope_share, "share of a head's elements that is rotated")
      .above(0)
      .at_most(1);
  f.add(
       "rope_pairs",
       &C::rope_pairs,
       "which elements of a head rotate together: halves, those that lie half of the rotated ones "
       "apart; adjacent, neighbours (Command-R). Those of latent attention are always neighbours"
  )
      .one_of({"halves", "adjacent"});
  f.add("rope_scaling", &C::rope_scaling, "how rotary embedding reaches beyond its first length")
      .one_of({"none", "linear", "llama3", "yarn"});
  f.add("rope_factor", &C::rope_factor, "stretch of all scalings").at_least(1);
  f.add("rope_low_freq", &C::rope_low_freq, "llama3 scaling: fewest turns that are blended")
      .above(0);
  f.add("rope_high_freq", &C::rope_high_freq, "llama3 scaling: most turns that are blended")
      .above(0);
  f.add("rope_beta_slow", &C::rope_beta_slow, "yarn scaling: fewest turns that are blended")
      .above(0);
  f.add("rope_beta_fast", &C::rope_beta_fast, "yarn scaling: most turns that are blended").above(0);
  f.add(
      "rope_truncate",
      &C::rope_truncate,
      "yarn scaling: the bounds of what is blended are rounded to whole pairs (GPT-OSS: false)"
  );
  f.add(
       "rope_attention",
       &C::rope_attention,
       "yarn scaling: factor of queries and keys; 0.1 ln(rope_factor) + 1 if absent"
  )
      .above(0);
  f.add(
       "rope_mscale",
       &C::rope_mscale,
       "yarn scaling of latent attention: m of the factor 0.1 m ln(rope_factor) + 1 of rotated "
       "elements, over that of rope_mscale_all_dim"
  )
      .above(0);
  f.add(
       "rope_mscale_all_dim",
       &C::rope_mscale_all_dim,
       "yarn scaling of latent attention: m of the factor 0.1 m ln(rope_factor) + 1 by whose "
       "square all scores are scaled"
  )
      .above(0);
  f.add(
       "rope_original_length",
       &C::rope_original_length,
       "llama3 and yarn scaling: first context length"
  )
      .unit("tokens")
      .at_least(1);
  f.add("causal", &C::causal, "a token sees only itself and those before it");
  f.add("window", &C::window, "tokens that a token sees, itself counted; all if absent")
      .unit("tokens")
      .at_least(1);
  f.add(
       "window_pattern",
       &C::window_pattern,
       "which layers have the window, repeated over the layers; all of them if empty"
  )
      .one_of({"window", "global"});
  f.add(
       "window_rope_base",
       &C::window_rope_base,
       "base of the rotary wavelengths in layers with the window, where rope_scaling is not "
       "applied; if absent these are as the other layers (Gemma 3)"
  )
      .above(0);
  f.add("bias", &C::bias, "biases in all linear layers");
  f.add("qkv_bias", &C::qkv_bias, "biases of query, key and value; as `bias` if absent");
  f.add("tied", &C::tied, "the output layer shares the word embedding's weight");
  f.add("head_bias", &C::head_bias, "a bias in the output layer, also of one that is tied (Phi)");
  f.add(
       "logit_scale",
       &C::logit_scale,
       "what the output layer reads is multiplied by this, and so are logits, but for a head_bias "
       "(Command-R)"
  )
      .above(0);
  f.add(
       "logit_cap",
       &C::logit_cap,
       "a logit z becomes cap tanh(z / cap); logits stay if absent (Gemma 2)"
  )
      .above(0);
  f.add(
       "mtp_layers",
       &C::mtp_layers,
       "multi-token prediction: so many further tokens are learned, each by a layer of its own "
       "before the output layer that all share (DeepSeek-V3); generation does without them"
  )
      .at_least(0);
  f.add(
       "mtp_loss_weight",
       &C::mtp_loss_weight,
       "multi-token prediction: factor of the mean of its losses in the total"
  )
      .above(0);
  f.add("dropout", &C::dropout, "dropout after the embedding and on both residual branches")
      .unit("probability")
      .at_least(0)
      .below(1);
  f.add("attention_dropout", &C::attention_dropout, "dropout on attention probabilities")
      .unit("probability")
      .at_least(0)
      .below(1);
  f.add("init_std", &C::init_std, "standard deviation of initial weights").at_least(0);
  f.add(
       "embedding_std",
       &C::embedding_std,
       "the same of embeddings, and with them of a tied output layer; init_std if absent"
  )
      .at_least(0);
  f.add(
      "scaled_init",
      &C::scaled_init,
      "divide the initial weights of each branch's last linear layer by sqrt(2 layers)"
  );
  for (const auto& field : decoder_detail::checked_fields()) {
    f.check(field, [field](const C& c) { return decoder_detail::contradiction(field, c); });
  }
}

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
/// Without `feed_forward` those of the dense one.
[[nodiscard]] MH_API std::vector<HfTensor>
llama_names(const DecoderConfig& config, const FeedForwardNames& feed_forward = nullptr);

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

/// The places of the norms in a layer.
enum class NormPlacement : uint8_t {
  pre,     ///< x + part(norm(x))
  post,    ///< norm(x + part(x)), no final norm
  branch,  ///< x + norm(part(x))
  sandwich ///< x + norm(part(norm(x))), two norms
};

/// The functions that make the parts of a layer; without `cross_attention` it has none.
struct DecoderParts {
  std::function<std::unique_ptr<NormPart>(Builder&)> norm;
  std::function<std::unique_ptr<AttentionPart>(Builder&)> attention;
  std::function<std::unique_ptr<FeedForwardPart>(Builder&)> feed_forward;
  std::function<std::unique_ptr<CrossAttentionPart>(Builder&)> cross_attention{};
  /// Attention and feed-forward read the layer's input and are added to it together; not with
  /// cross attention or NormPlacement::post.
  bool parallel = false;
  bool shared_norm = false; ///< one norm for both of parallel parts; with NormPlacement::pre alone
};

/// Attention, attention to a memory where there is one, then a feed-forward, each on a residual
/// branch with a norm: a layer of a decoder or an encoder, of parts of any kind. Their names begin
/// with "attention_norm.", "attention.", "cross_attention_norm.", "cross_attention.", "mlp_norm.",
/// "mlp."; the second norms of a sandwich with "attention_out_norm." and so on; a norm that both parts
/// read is "attention_norm.".
///
/// State:   "hidden" [seq, batch, embed] -> the same; "memory" [seq of its sequence, batch, embed],
///          which cross attention reads, passes unchanged
class MH_API DecoderLayer : public Block {
public:
  DecoderLayer(
      Builder& builder,
      Axis embed,
      NormPlacement placement,
      double dropout,
      const DecoderParts& parts
  );
  [[nodiscard]] State forward(const State& state, StepContext& context) const override;

  /// Whether all its parts read a cache.
  [[nodiscard]] bool reads_cache() const override;

private:
  /// The residual stream: a sum, and what a norm may add to it on its way (or undefined).
  struct Stream {
    at::Tensor sum, added;

    [[nodiscard]] at::Tensor whole() const;
  };

  /// The norms of one part; the second, null or of a sandwich, is of what the part makes.
  struct Norms {
    std::unique_ptr<NormPart> first, second;
  };

  [[nodiscard]] Norms
  norms(Builder& builder, const std::string& part, const DecoderParts& parts) const;

  /// x + attention(norm(x)) + feed_forward(norm(x)), the norm computed once.
  [[nodiscard]] at::Tensor with_shared_norm(const at::Tensor& x, StepContext& context) const;

  template <class Run>
  Stream residual(
      std::string_view name,
      const Stream& stream,
      const at::Tensor& memory,
      const Run& part,
      const Norms& norms,
      uint64_t site,
      StepContext& context
  ) const;

  Axis embed_;
  NormPlacement placement_;
  bool parallel_, shared_norm_;
  double dropout_;
  uint64_t attention_site_, cross_site_, mlp_site_;
  Norms attention_norms_;
  std::unique_ptr<AttentionPart> attention_;
  Norms cross_norms_;
  std::unique_ptr<CrossAttentionPart> cross_attention_; // or null
  Norms mlp_norms_;                                     // null with a shared norm
  std::unique_ptr<FeedForwardPart> mlp_;
};

/// A decoder of the fields above. A plugin that wants another norm, attention or feed-forward in
/// its layers overrides what makes that part.
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
///                                      these have the rows of q and of k
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
