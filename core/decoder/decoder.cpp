#include "megahost/nn/decoder.hpp"

#include "core/decoder/multi_token_prediction.hpp"
#include "megahost/nn/latent_attention.hpp"

#include <cmath>

namespace mh {

namespace {

DecoderConfig complete(DecoderConfig c, const Architecture::Args& args) {
  c.vocab = decoder_detail::vocab_of(c.vocab, args);
  c.kv_heads = c.kv_heads.value_or(c.heads);
  c.head_dim = c.head_dim.value_or(c.hidden / c.heads);
  c.qkv_bias = c.qkv_bias.value_or(c.bias);
  c.embedding_std = c.embedding_std.value_or(c.init_std);
  c.ffn_hidden = c.ffn_hidden.value_or(decoder_detail::default_ffn_hidden(c.hidden, c.activation));
  return c;
}

Axis embed_axis(const DecoderConfig& c) {
  return {axis::embed, c.hidden};
}

/// Standard deviation of initial values of the last GEMM of each branch.
double out_std(const DecoderConfig& c) {
  return c.scaled_init ? c.init_std / std::sqrt(2.0 * static_cast<double>(c.layers)) : c.init_std;
}

NormPlacement norm_placement(const std::string& name) {
  return name == "post"       ? NormPlacement::post
         : name == "branch"   ? NormPlacement::branch
         : name == "sandwich" ? NormPlacement::sandwich
                              : NormPlacement::pre;
}

bool has_window(const DecoderConfig& c, int64_t index) {
  const auto& pattern = c.window_pattern;
  return c.window &&
         (pattern.empty() || pattern[static_cast<size_t>(index) % pattern.size()] == "window");
}

AttentionMask attention_mask(const DecoderConfig& c, int64_t index) {
  return {
      .causal = c.causal,
      .window = has_window(c, index) ? *c.window : 0,
      .cap = c.score_cap.value_or(0)};
}

/// Whether queries and keys of layer `index` are rotated.
bool rotates(const DecoderConfig& c, int64_t index) {
  const auto& pattern = c.rope_pattern;
  return c.positions == "rope" &&
         (pattern.empty() || pattern[static_cast<size_t>(index) % pattern.size()] == "rope");
}

QueryKeyNorm query_key_norm(const std::string& over) {
  return over == "own_head"    ? QueryKeyNorm::own_head
         : over == "all_heads" ? QueryKeyNorm::all_heads
                               : QueryKeyNorm::head;
}

/// The factors of LongRoPE follow from the length that the model is made for, so that keys in a cache
/// stay as they are while a text grows.
const std::vector<double>& wavelength_factors(const DecoderConfig& c, int64_t seq_length) {
  return seq_length > c.rope_original_length ? c.rope_long_factors : c.rope_short_factors;
}

RotarySpec rotary_spec(const DecoderConfig& c, int64_t dim, int64_t seq_length) {
  return {
      .dim = dim,
      .base = c.rope_base,
      .scaling = c.rope_scaling,
      .factor = c.rope_factor,
      .low_freq = c.rope_low_freq,
      .high_freq = c.rope_high_freq,
      .beta_slow = c.rope_beta_slow,
      .beta_fast = c.rope_beta_fast,
      .truncate = c.rope_truncate,
      .original_length = static_cast<double>(c.rope_original_length),
      .attention = c.rope_attention,
      .wavelengths = wavelength_factors(c, seq_length)};
}

LatentAttentionSpec latent_spec(const DecoderConfig& c, int64_t index, int64_t seq_length) {
  LatentAttentionSpec spec{
      .embed = embed_axis(c),
      .heads = c.heads,
      .head_dim = *c.head_dim,
      .value_dim = c.v_head_dim.value_or(*c.head_dim),
      .q_rank = c.q_rank,
      .kv_rank = *c.kv_rank,
      .rotary = rotary_spec(c, c.rope_head_dim.value_or(64), seq_length),
      .norm_eps = c.norm_eps,
      .mask = attention_mask(c, index),
      .dropout = c.attention_dropout,
      .std = c.init_std,
      .out_std = out_std(c)};
  if (c.rope_mscale_all_dim) { // YaRN's factor, of rotated elements and of all
    const auto factor = [&](double m) { return 0.1 * m * std::log(c.rope_factor) + 1; };
    const double all = factor(*c.rope_mscale_all_dim);
    spec.score_scale = all * all;
    if (c.rope_mscale) {
      spec.rotary.attention = factor(*c.rope_mscale) / all;
    }
  }
  return spec;
}

} // namespace

Decoder::Decoder(const DecoderConfig& config, const Args& args)
    : config_(complete(config, args))
    , seq_length_(args.seq_length) {}

std::unique_ptr<Block> Decoder::embedding(Builder& builder) const {
  return std::make_unique<DecoderEmbedding>(builder, config_, seq_length_);
}

std::unique_ptr<Block> Decoder::layer(int64_t index, Builder& builder) const {
  return std::make_unique<DecoderLayer>(
      builder,
      embed_axis(config_),
      norm_placement(config_.norm_placement),
      config_.dropout,
      DecoderParts{
          .norm = [this](Builder& b) { return norm(b); },
          .attention = [this, index](Builder& b) { return attention(index, b); },
          .feed_forward = [this, index](Builder& b) { return feed_forward(index, b); },
          .parallel = config_.parallel_residual,
          .shared_norm = config_.shared_norm}
  );
}

std::unique_ptr<NormPart> Decoder::norm(Builder& builder) const {
  return std::make_unique<Norm>(
      builder,
      NormSpec{
          .kind = norm_kind(config_.norm),
          .axis = embed_axis(config_),
          .eps = config_.norm_eps,
          .seen = builder.place(embed_axis(config_))}
  );
}

std::unique_ptr<AttentionPart> Decoder::attention(int64_t index, Builder& builder) const {
  if (config_.kv_rank) {
    return std::make_unique<LatentAttention>(builder, latent_spec(config_, index, seq_length_));
  }
  return std::make_unique<Attention>(builder, attention_spec(index));
}

std::unique_ptr<FeedForwardPart> Decoder::feed_forward(int64_t, Builder& builder) const {
  return std::make_unique<FeedForward>(builder, feed_forward_spec());
}

AttentionSpec Decoder::attention_spec(int64_t index) const {
  const DecoderConfig& c = config_;
  AttentionSpec spec{
      .embed = embed_axis(c),
      .heads = c.heads,
      .kv_heads = *c.kv_heads,
      .head_dim = *c.head_dim,
      .qkv_bias = *c.qkv_bias,
      .bias = c.bias,
      .mask = attention_mask(c, index),
      .dropout = c.attention_dropout,
      .std = c.init_std,
      .out_std = out_std(c),
      .sinks = c.sinks,
      .gate = c.attention_gate};
  if (c.qk_norm) {
    spec.qk_norm_eps = c.norm_eps;
    spec.qk_norm_over = query_key_norm(c.qk_norm_over);
    spec.qk_norm = norm_kind(decoder_detail::qk_norm_kind(c));
  }
  if (c.score_dim) {
    spec.scale = 1 / std::sqrt(static_cast<double>(*c.score_dim));
  }
  if (c.positions == "alibi") {
    spec.alibi = 1;
  } else if (c.positions == "alibi_scaled") {
    spec.alibi = spec.scale.value_or(1 / std::sqrt(static_cast<double>(*c.head_dim)));
  }
  if (rotates(c, index)) {
    const auto pairs = std::llround(static_cast<double>(*c.head_dim) * c.rope_share / 2);
    const bool own_base = c.window_rope_base && has_window(c, index);
    spec.adjacent_pairs = c.rope_pairs == "adjacent";
    spec.rotary = own_base ? RotarySpec{.dim = 2 * pairs, .base = *c.window_rope_base}
                           : rotary_spec(c, 2 * pairs, seq_length_);
  }
  return spec;
}

FeedForwardSpec Decoder::feed_forward_spec() const {
  return {
      .embed = embed_axis(config_),
      .hidden = *config_.ffn_hidden,
      .activation = activation_kind(config_.activation),
      .bias = config_.bias,
      .std = config_.init_std,
      .out_std = out_std(config_)};
}

std::vector<ShiftedArray> Decoder::shifted_arrays() const {
  std::vector<ShiftedArray> arrays;
  for (int64_t depth = 1; depth <= config_.mtp_layers; ++depth) {
    for (const char* from : {"tokens", "labels", "loss_mask"}) {
      arrays.push_back({MultiTokenPrediction::name(depth) + "_" + from, from, depth});
    }
  }
  return arrays;
}

std::vector<Upcycled> Decoder::upcycled() const {
  return config_.mtp_layers > 0 ? std::vector<Upcycled>{{"head.mtp.", {}}}
                                : std::vector<Upcycled>{};
}

std::unique_ptr<Block> Decoder::head(Builder& builder) const {
  const bool post = norm_placement(config_.norm_placement) == NormPlacement::post;
  return std::make_unique<DecoderHead>(
      builder,
      config_,
      seq_length_,
      DecoderHeadParts{
          .final_norm = [this, post](Builder& b) { return post ? nullptr : norm(b); },
          .norm = [this](Builder& b) { return norm(b); },
          .layer = [this](Builder& b) { return layer(config_.layers - 1, b); }}
  );
}

} // namespace mh
