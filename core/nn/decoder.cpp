#include "megahost/nn/decoder.hpp"

#include "core/nn/decoder_embedding.hpp"
#include "core/nn/multi_token_prediction.hpp"
#include "megahost/error.hpp"
#include "megahost/nn/dropout.hpp"
#include "megahost/nn/latent_attention.hpp"
#include "megahost/nn/vocab.hpp"
#include "megahost/random.hpp"

#include <ATen/TensorOperators.h>

#include <cmath>
#include <functional>
#include <string_view>
#include <utility>

namespace mh {

namespace {

constexpr auto kHidden = "hidden";

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

class EmbeddingBlock : public Block {
public:
  EmbeddingBlock(Builder& builder, const DecoderConfig& c, int64_t seq_length)
      : embed_(embed_axis(c))
      , words_(builder, c, seq_length, /*made_before=*/false, random_key(0, "embedding")) {}

  [[nodiscard]] State forward(const State&, StepContext& context) const override {
    const at::Tensor x = words_.forward(context.array("tokens"), /*ahead=*/0, context);
    return {kHidden, x, context.dims(embed_)};
  }

  [[nodiscard]] bool reads_cache() const override { return true; }

private:
  Axis embed_;
  DecoderEmbedding words_;
};

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

RotarySpec rotary_spec(const DecoderConfig& c, int64_t dim) {
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
      .attention = c.rope_attention};
}

LatentAttentionSpec latent_spec(const DecoderConfig& c, int64_t index) {
  LatentAttentionSpec spec{
      .embed = embed_axis(c),
      .heads = c.heads,
      .head_dim = *c.head_dim,
      .value_dim = c.v_head_dim.value_or(*c.head_dim),
      .q_rank = c.q_rank,
      .kv_rank = *c.kv_rank,
      .rotary = rotary_spec(c, c.rope_head_dim.value_or(64)),
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

class HeadBlock : public Block {
public:
  using MakeNorm = MultiTokenPrediction::MakeNorm;
  using MakeLayer = MultiTokenPrediction::MakeLayer;

  /// `norm` makes null where there is no final norm; `layer` is that of multi-token prediction.
  HeadBlock(
      Builder& builder,
      const DecoderConfig& c,
      int64_t seq_length,
      const MakeNorm& norm,
      const MakeNorm& final_norm,
      const MakeLayer& layer
  )
      : norm_(builder.below("norm", [&] { return final_norm(builder); }))
      , scale_(c.logit_scale)
      , vocab_{axis::vocab, *c.vocab}
      , gemms_(builder.flops.gemms)
      , head_(
            builder,
            embed_axis(c),
            vocab_,
            c.init_std,
            c.tied ? "embedding.word.weight" : "",
            c.head_bias,
            c.logit_cap.value_or(0)
        )
      , mtp_weight_(c.mtp_loss_weight / static_cast<double>(std::max<int64_t>(1, c.mtp_layers))) {
    gemms_ = builder.flops.gemms - gemms_;
    const auto names = builder.scope("mtp");
    for (int64_t depth = 1; depth <= c.mtp_layers; ++depth) {
      const auto number = builder.scope(std::to_string(depth - 1));
      mtp_.emplace_back(builder, c, seq_length, depth, norm, final_norm, layer);
      builder.flops.gemms += gemms_; // the output layer once more
    }
  }

  [[nodiscard]] State forward(const State& state, StepContext& context) const override {
    at::Tensor x = state[kHidden].value;
    const bool labels = context.has_array("labels");
    if (!labels && context.mode().last_logits) {
      x = x.narrow(0, x.size(0) - 1, 1);
    }
    if (norm_ != nullptr) {
      x = norm_->forward(x);
    }
    if (!labels) {
      Dims dims = context.dims(vocab_);
      dims[0].size = context.mode().last_logits ? 1 : dims[0].size;
      return {"logits", head_.logits(scaled(x), context), dims};
    }
    add_loss(x, "lm loss", "", 1, context);
    for (const MultiTokenPrediction& module : mtp_) {
      x = module.forward(x, context);
      add_loss(x, module.name() + " loss", module.name() + "_", mtp_weight_, context);
    }
    return {};
  }

  [[nodiscard]] bool reads_cache() const override { return true; }

private:
  [[nodiscard]] at::Tensor scaled(const at::Tensor& x) const {
    return scale_ == 1 ? x : x * scale_;
  }

  /// `arrays` is what the names of labels and their mask begin with.
  void add_loss(
      const at::Tensor& x,
      const std::string& name,
      const std::string& arrays,
      double weight,
      StepContext& context
  ) const {
    const std::string mask = arrays + "loss_mask";
    const at::Tensor sum = head_.loss(
        scaled(x),
        context.array(arrays + "labels"),
        context.array(mask),
        context,
        context.loss_factor(mask, weight)
    );
    context.add_loss({.name = name, .sum = sum, .over = mask, .weight = weight});
  }

  std::unique_ptr<NormPart> norm_; // or null
  double scale_;
  Axis vocab_;
  double gemms_; // FLOPs of the output layer
  VocabHead head_;
  std::vector<MultiTokenPrediction> mtp_;
  double mtp_weight_;
};

} // namespace

DecoderLayer::DecoderLayer(
    Builder& builder, Axis embed, NormPlacement placement, double dropout, const DecoderParts& parts
)
    : embed_(embed)
    , placement_(placement)
    , parallel_(parts.parallel)
    , shared_norm_(parts.shared_norm)
    , dropout_(dropout)
    , attention_site_(random_key(0, builder.global_name("attention")))
    , cross_site_(random_key(0, builder.global_name("cross_attention")))
    , mlp_site_(random_key(0, builder.global_name("mlp")))
    , attention_norms_(norms(builder, "attention", parts))
    , attention_(builder.below("attention", [&] { return parts.attention(builder); })) {
  MH_ASSERT(
      !parallel_ || (placement != NormPlacement::post && !parts.cross_attention),
      "parallel branches have no norm between them, and no cross attention"
  );
  MH_ASSERT(
      !shared_norm_ || (parallel_ && placement == NormPlacement::pre),
      "only parallel branches read one norm, and it comes before them"
  );
  if (parts.cross_attention) {
    cross_norms_ = norms(builder, "cross_attention", parts);
    cross_attention_ =
        builder.below("cross_attention", [&] { return parts.cross_attention(builder); });
  }
  if (!shared_norm_) {
    mlp_norms_ = norms(builder, "mlp", parts);
  }
  mlp_ = builder.below("mlp", [&] { return parts.feed_forward(builder); });
}

DecoderLayer::Norms
DecoderLayer::norms(Builder& builder, const std::string& part, const DecoderParts& parts) const {
  const auto norm = [&](const std::string& name) {
    return builder.below(name, [&] { return parts.norm(builder); });
  };
  Norms made{norm(part + "_norm"), nullptr};
  if (placement_ == NormPlacement::sandwich) {
    made.second = norm(part + "_out_norm");
  }
  return made;
}

at::Tensor DecoderLayer::Stream::whole() const {
  return added.defined() ? sum + added : sum;
}

State DecoderLayer::forward(const State& state, StepContext& context) const {
  if (shared_norm_) {
    return state.with(kHidden, with_shared_norm(state[kHidden].value, context));
  }
  StepContext* step = &context;
  const auto run = [step](const auto& part) {
    return [step, &part](const at::Tensor& x, const auto&) { return part.forward(x, *step); };
  };
  const Stream in{state[kHidden].value, {}};
  Stream x =
      residual("attention", in, {}, run(*attention_), attention_norms_, attention_site_, context);
  if (cross_attention_ != nullptr) {
    const auto look = [this, step](const at::Tensor& y, const at::Tensor& memory) {
      return cross_attention_->forward(y, memory, *step);
    };
    const at::Tensor& memory = state["memory"].value;
    x = residual("attention", x, memory, look, cross_norms_, cross_site_, context);
  }
  const Stream& read = parallel_ ? in : x;
  const Stream y = residual("mlp", read, {}, run(*mlp_), mlp_norms_, mlp_site_, context);
  return state.with(kHidden, parallel_ ? y.whole() + x.added : y.whole());
}

bool DecoderLayer::reads_cache() const {
  return attention_->reads_cache() && mlp_->reads_cache() &&
         (cross_attention_ == nullptr || cross_attention_->reads_cache());
}

/// Parts that are recomputed keep the norm's result, which both read; where the norm is recomputed,
/// too, only x is kept.
at::Tensor DecoderLayer::with_shared_norm(const at::Tensor& x, StepContext& context) const {
  StepContext* step = &context;
  const auto branches = [this, step](const at::Tensor& normal) {
    const auto branch = [&](std::string_view name, const auto* part, uint64_t site) {
      const at::Tensor made = step->part(name, {normal}, [part, step](const auto& in) {
        return part->forward(in[0], *step);
      });
      return mh::dropout(made, embed_, dropout_, site, *step);
    };
    return branch("attention", attention_.get(), attention_site_) +
           branch("mlp", mlp_.get(), mlp_site_);
  };
  const NormPart& norm = *attention_norms_.first;
  if (context.redoes("norms")) {
    return x + norm.forward(x, context, branches);
  }
  const auto [normal, sum] = norm.of_sum(x, {});
  return sum + branches(normal);
}

/// x + part(x, memory), with a norm where the config wants it; memory may be undefined. A norm that
/// the plan does not recompute adds up the stream itself.
template <class Run>
DecoderLayer::Stream DecoderLayer::residual(
    std::string_view name,
    const Stream& stream,
    const at::Tensor& memory,
    const Run& part,
    const Norms& norms,
    uint64_t site,
    StepContext& context
) const {
  const bool before = placement_ == NormPlacement::pre || placement_ == NormPlacement::sandwich;
  const NormPart& norm = *norms.first;
  const NormPart* after = placement_ == NormPlacement::branch ? &norm : norms.second.get();
  const auto finished = [after](const at::Tensor& y, StepContext& step) {
    return after == nullptr ? y : after->forward(y, step);
  };
  const auto dropped = [&](const at::Tensor& branch) {
    return mh::dropout(branch, embed_, dropout_, site, context);
  };
  if (before && !context.redoes(name) && !context.redoes("norms")) {
    const auto [y, sum] = norm.of_sum(stream.sum, stream.added);
    return {sum, dropped(finished(part(y, memory), context))};
  }
  std::vector<at::Tensor> inputs{stream.whole()};
  if (memory.defined()) {
    inputs.push_back(memory);
  }
  StepContext* step = &context;
  const at::Tensor branch = context.part(name, inputs, [=, &norm](const auto& in) {
    const auto run = [&](const at::Tensor& x) {
      return part(x, in.size() > 1 ? in[1] : at::Tensor());
    };
    return finished(before ? norm.forward(in[0], *step, run) : run(in[0]), *step);
  });
  if (placement_ == NormPlacement::post) {
    return {norm.forward(inputs.front() + dropped(branch), context), {}};
  }
  return {inputs.front(), dropped(branch)};
}

Decoder::Decoder(const DecoderConfig& config, const Args& args)
    : config_(complete(config, args))
    , seq_length_(args.seq_length) {}

std::unique_ptr<Block> Decoder::embedding(Builder& builder) const {
  return std::make_unique<EmbeddingBlock>(builder, config_, seq_length_);
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
    return std::make_unique<LatentAttention>(builder, latent_spec(config_, index));
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
    spec.qk_norm_all_heads = c.qk_norm_over == "all_heads";
    spec.qk_norm = info(norm_kind(c.norm)).one_plus ? NormKind::rmsnorm_1p : NormKind::rmsnorm;
  }
  if (c.score_dim) {
    spec.scale = 1 / std::sqrt(static_cast<double>(*c.score_dim));
  }
  if (c.positions == "rope") {
    const auto pairs = std::llround(static_cast<double>(*c.head_dim) * c.rope_share / 2);
    const bool own_base = c.window_rope_base && has_window(c, index);
    spec.adjacent_pairs = c.rope_pairs == "adjacent";
    spec.rotary = own_base ? RotarySpec{.dim = 2 * pairs, .base = *c.window_rope_base}
                           : rotary_spec(c, 2 * pairs);
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
  const auto make_norm = [this](Builder& b) { return norm(b); };
  const auto make_final_norm = [&](Builder& b) { return post ? nullptr : norm(b); };
  const auto make_layer = [this](Builder& b) { return layer(config_.layers - 1, b); };
  return std::make_unique<HeadBlock>(
      builder, config_, seq_length_, make_norm, make_final_norm, make_layer
  );
}

} // namespace mh
