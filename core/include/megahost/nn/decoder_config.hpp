#pragma once
/// The fields of a decoder (nn/decoder.hpp): a plugin's configuration derives from them.

#include "megahost/architecture.hpp"
#include "megahost/export.hpp"
#include "megahost/model_scale.hpp"
#include "megahost/schema.hpp"

#include <cstdint>
#include <optional>
#include <string>
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
  std::optional<std::string> qk_norm_kind;
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
  std::vector<std::string> rope_pattern;
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
  std::vector<double> rope_short_factors;
  std::vector<double> rope_long_factors;
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

/// The usual fields of Llama and its relatives: rotary positions, RMSNorm, SwiGLU, no biases, an
/// output layer of its own.
struct LlamaConfig : DecoderConfig {
  LlamaConfig() {
    norm = "rmsnorm";
    activation = "swiglu";
    positions = "rope";
    bias = false;
    tied = false;
  }
};

/// Sizes of a small decoder in addition to those that the core knows (model_scale.hpp): those of
/// latent attention, the window, and a factor of each pair that rotates.
[[nodiscard]] MH_API Table scaled(const DecoderConfig& whole, const ModelScale& to);

namespace decoder_detail {

/// The fields at which contradictions between fields are reported.
[[nodiscard]] MH_API std::vector<std::string> checked_fields();

[[nodiscard]] MH_API std::vector<std::string> norm_names();
[[nodiscard]] MH_API std::vector<std::string> activation_names();

/// `ffn_hidden` where a recipe does not say: 4 hidden, or 8/3 hidden rounded up to a multiple
/// of 64.
[[nodiscard]] MH_API int64_t default_ffn_hidden(int64_t hidden, const std::string& activation);

/// `qk_norm_kind`, or where a recipe does not say rmsnorm and its form with 1 + weight.
[[nodiscard]] MH_API std::string qk_norm_kind(const DecoderConfig& c);

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
  f.add("qk_norm", &C::qk_norm, "norm of queries and keys, before positions rotate them");
  f.add(
       "qk_norm_over",
       &C::qk_norm_over,
       "what the query-key norm is over: each head, by weights that all heads share or by weights "
       "of its own (own_head: Command-R+); or all heads together (OLMo 2)"
  )
      .one_of({"head", "own_head", "all_heads"});
  f.add(
       "qk_norm_kind",
       &C::qk_norm_kind,
       "kind of the query-key norm; rmsnorm if absent, or rmsnorm_1p where norm is"
  )
      .one_of(decoder_detail::norm_names());
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
  f.add(
       "positions",
       &C::positions,
       "how tokens know their positions: a learned table; rotated queries and keys (rope); a bias of "
       "scores, the distance times a slope of each head (alibi), divided as scores are by "
       "sqrt(head_dim) (alibi_scaled, Falcon-RW); not at all"
  )
      .one_of({"learned", "rope", "alibi", "alibi_scaled", "none"});
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
  f.add(
       "rope_pattern",
       &C::rope_pattern,
       "which layers rotate, repeated over the layers; those of none know no positions (SmolLM3, "
       "Command R7B); all rotate if empty"
  )
      .one_of({"rope", "none"});
  f.add("rope_scaling", &C::rope_scaling, "how rotary embedding reaches beyond its first length")
      .one_of({"none", "linear", "llama3", "yarn", "longrope"});
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
       "yarn and longrope scaling: factor of queries and keys; if absent 0.1 ln(rope_factor) + 1, and "
       "of longrope sqrt(1 + ln(rope_factor) / ln(rope_original_length))"
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
       "llama3, yarn and longrope scaling: first context length"
  )
      .unit("tokens")
      .at_least(1);
  f.add(
       "rope_short_factors",
       &C::rope_short_factors,
       "longrope scaling: what the wavelength of each pair is multiplied by where seq_length is at "
       "most rope_original_length (Phi 3)"
  )
      .above(0);
  f.add(
       "rope_long_factors",
       &C::rope_long_factors,
       "longrope scaling: the same where seq_length is longer, for texts of any length"
  )
      .above(0);
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

} // namespace mh
