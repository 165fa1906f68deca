/// T5: an encoder reads a text with holes, a decoder writes what was in them.

#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "t5.hpp"

#include <megahost/error.hpp>
#include <megahost/nn/decoder.hpp>
#include <megahost/nn/dropout.hpp>
#include <megahost/nn/embedding.hpp>
#include <megahost/nn/vocab.hpp>
#include <megahost/plugin.hpp>
#include <megahost/random.hpp>

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string_view>
#include <utility>

namespace mh::t5 {
namespace {

constexpr auto kHidden = "hidden";
constexpr auto kMemory = "memory";
constexpr auto kEncoder = "encoder";
constexpr auto kWords = "embedding.word.weight";
constexpr auto kPositions = "embedding.position.weight";

T5Config complete(T5Config c, const Architecture::Args& args) {
  c.vocab = decoder_detail::vocab_of(c.vocab, args);
  c.head_dim = c.head_dim.value_or(c.hidden / c.heads);
  c.head_scale = c.head_scale.value_or(c.tied && c.relative());
  c.ffn_hidden = c.ffn_hidden.value_or(decoder_detail::default_ffn_hidden(c.hidden, c.activation));
  return c;
}

/// Standard deviations of initial weights: with `init_std` that of all; else T5's own, by which
/// each layer's result has the size of its input, and scores need no scale.
struct InitialStd {
  double words, q, kv, out, up, down, head;

  explicit InitialStd(const T5Config& c) {
    const auto root = [](int64_t inputs) { return 1 / std::sqrt(static_cast<double>(inputs)); };
    words = c.init_std.value_or(1.0);
    q = c.init_std.value_or(root(c.hidden) * (c.relative() ? root(*c.head_dim) : 1.0));
    kv = up = c.init_std.value_or(root(c.hidden));
    const double last = c.scaled_init ? root(2 * c.encoder_layers) : 1.0;
    out = last * c.init_std.value_or(root(c.heads * *c.head_dim));
    down = last * c.init_std.value_or(root(*c.ffn_hidden));
    head = c.init_std.value_or(c.tied ? 1.0 : root(c.hidden));
  }
};

/// Words and, where they are learned, positions of one sequence. The encoder's make the tables that
/// the decoder's share.
class T5Embedding {
public:
  /// `positions`: rows of the table of positions.
  T5Embedding(Builder& builder, const T5Config& c, Axis embed, int64_t positions, bool first)
      : embed_(embed)
      , dropout_(c.dropout)
      , site_(random_key(0, first ? "encoder embedding" : "decoder embedding"))
      , words_(table(builder, first, "word", {axis::vocab, *c.vocab}, InitialStd(c).words)) {
    if (!c.relative() && !c.rotary()) {
      positions_ = std::make_unique<Embedding>(
          table(builder, first, "position", {axis::position, positions}, InitialStd(c).words)
      );
    }
  }

  [[nodiscard]] at::Tensor forward(const at::Tensor& tokens, StepContext& context) const {
    at::Tensor x = words_.forward(tokens, context);
    if (positions_ != nullptr) {
      x = x + positions_->forward(context.positions(), context);
    }
    return dropout(x, embed_, dropout_, site_, context);
  }

private:
  [[nodiscard]] Embedding
  table(Builder& builder, bool first, std::string_view name, Axis rows, double std) const {
    if (!first) {
      return {builder, rows, embed_, builder.shared(name == "word" ? kWords : kPositions)};
    }
    return builder.below(name, [&] { return Embedding(builder, rows, embed_, std); });
  }

  Axis embed_;
  double dropout_;
  uint64_t site_;
  Embedding words_;
  std::unique_ptr<Embedding> positions_; // or null
};

/// The first block of the encoder.
class EncoderWords : public Block {
public:
  EncoderWords(Builder& builder, const T5Config& c, Axis embed, int64_t positions)
      : embed_(embed)
      , embedding_([&] {
        const auto tokens = builder.within(kEncoder);
        return T5Embedding(builder, c, embed, positions, /*first=*/true);
      }()) {}

  [[nodiscard]] State forward(const State&, StepContext& context) const override {
    const auto tokens = context.within(kEncoder);
    const at::Tensor x = embedding_.forward(context.array("encoder_tokens"), context);
    return {kHidden, x, context.dims(embed_)};
  }

  [[nodiscard]] bool runs_once() const override { return true; }

private:
  Axis embed_;
  T5Embedding embedding_;
};

/// A layer over the encoder's tokens.
class EncoderLayer : public Block {
public:
  explicit EncoderLayer(std::unique_ptr<Block> layer)
      : layer_(std::move(layer)) {}

  [[nodiscard]] State forward(const State& state, StepContext& context) const override {
    const auto tokens = context.within(kEncoder);
    return layer_->forward(state, context);
  }

  [[nodiscard]] bool runs_once() const override { return true; }

private:
  std::unique_ptr<Block> layer_;
};

/// The decoder's first layer: what the encoder made becomes the memory, and the decoder's words the
/// hidden state.
class FirstDecoderLayer : public Block {
public:
  FirstDecoderLayer(
      Axis embed,
      double dropout,
      std::unique_ptr<NormPart> memory_norm,
      T5Embedding embedding,
      std::unique_ptr<Block> layer
  )
      : embed_(embed)
      , dropout_(dropout)
      , site_(random_key(0, "memory"))
      , memory_norm_(std::move(memory_norm))
      , embedding_(std::move(embedding))
      , layer_(std::move(layer)) {}

  [[nodiscard]] State forward(const State& state, StepContext& context) const override {
    const Activation& encoded = state[kHidden];
    const at::Tensor x = embedding_.forward(context.array("tokens"), context);
    State both(kHidden, x, context.dims(embed_));
    both.set(kMemory, memory(encoded.value, context), encoded.dims);
    return layer_->forward(both, context);
  }

  [[nodiscard]] bool reads_cache() const override { return layer_->reads_cache(); }

private:
  [[nodiscard]] at::Tensor memory(const at::Tensor& encoded, StepContext& context) const {
    const auto tokens = context.within(kEncoder);
    const at::Tensor y = memory_norm_->forward(encoded, context);
    return dropout(y, embed_, dropout_, site_, context);
  }

  Axis embed_;
  double dropout_;
  uint64_t site_;
  std::unique_ptr<NormPart> memory_norm_;
  T5Embedding embedding_;
  std::unique_ptr<Block> layer_;
};

/// Scores of the vocabulary. T5 scales hidden states down before the words' own table, whose rows are
/// large.
class T5Head : public Block {
public:
  T5Head(Builder& builder, const T5Config& c, Axis embed, std::unique_ptr<NormPart> norm)
      : embed_(embed)
      , dropout_(c.dropout)
      , site_(random_key(0, "head"))
      , scale_(*c.head_scale ? 1 / std::sqrt(static_cast<double>(c.hidden)) : 1)
      , norm_(std::move(norm))
      , vocab_{axis::vocab, *c.vocab}
      , head_(builder, embed, vocab_, InitialStd(c).head, c.tied ? kWords : "", c.bias) {}

  [[nodiscard]] State forward(const State& state, StepContext& context) const override {
    at::Tensor x = state[kHidden].value;
    const bool labels = context.has_array("labels");
    if (!labels && context.mode().last_logits) {
      x = x.narrow(0, x.size(0) - 1, 1);
    }
    x = norm_->forward(x, context);
    x = labels ? dropout(x, embed_, dropout_, site_, context) : x;
    x = scale_ == 1 ? x : x * scale_;
    if (!labels) {
      Dims dims = context.dims(vocab_);
      dims[0].size = context.mode().last_logits ? 1 : dims[0].size;
      return {"logits", head_.logits(x, context), dims};
    }
    const at::Tensor& mask = context.array("loss_mask");
    const auto factor = context.loss_factor("loss_mask");
    context.add_loss(
        {.name = "lm loss",
         .sum = head_.loss(x, context.array("labels"), mask, context, factor),
         .over = "loss_mask"}
    );
    return {};
  }

  [[nodiscard]] bool reads_cache() const override { return true; }

private:
  Axis embed_;
  double dropout_;
  uint64_t site_;
  double scale_;
  std::unique_ptr<NormPart> norm_;
  Axis vocab_;
  VocabHead head_;
};

/// An encoder and a decoder of the decoders' parts (nn/decoder.hpp).
///
/// Parameters: by global name; layers 0 to encoder_layers - 1 are the encoder's, the decoder's
/// follow. F is the first layer of either stack, D the decoder's first.
///
///   embedding.word.weight                     [vocab, hidden]
///   embedding.position.weight                 [longer length, hidden]  positions = "learned"
///   layers.N.attention.{q,k,v}.weight         [heads * head_dim, hidden]
///   layers.N.attention.out.weight             [hidden, heads * head_dim]
///   layers.F.attention.relative_bias.weight   [heads, buckets]         positions = "relative"
///   layers.N.cross_attention.*                as attention, of the decoder
///   layers.N.mlp.{gate,up,down}.weight        `gate` of gated activations
///   layers.N.{attention,cross_attention,mlp}_norm.weight  [hidden]
///   layers.D.memory_norm.weight               [hidden], the encoder's last norm
///   head.norm.weight                          [hidden]
///   head.weight                               [vocab, hidden]          tied = false
///   *.bias                                    of linear layers and the head, with `bias`; of norms
///                                             with norm = "layernorm"
///
/// Source:  arXiv:1910.10683; version 1.1: arXiv:2002.05202, untied and gated
class T5 : public Architecture {
public:
  using Config = T5Config;

  static void fields(Fields<Config>& f) {
    f.add("encoder_layers", &Config::encoder_layers, "blocks of the encoder")
        .at_least(1)
        .more_layers();
    f.add("layers", &Config::layers, "blocks of the decoder").at_least(1);
    f.add("hidden", &Config::hidden, "width of the residual streams").at_least(1);
    f.add("heads", &Config::heads, "heads").at_least(1);
    f.add("head_dim", &Config::head_dim, "elements of a head; hidden / heads if absent")
        .at_least(1);
    f.add(
         "ffn_hidden",
         &Config::ffn_hidden,
         "hidden units of the feed-forward; if absent 4 hidden, or 8/3 hidden rounded up to a "
         "multiple of 64 for gated activations"
    )
        .at_least(1);
    f.add("vocab", &Config::vocab, "entries of the vocabulary; the tokenizer's if absent")
        .at_least(1);
    f.add("encoder_length", &Config::encoder_length, "tokens that the encoder reads")
        .at_least(1)
        .unit("tokens");
    f.add("norm", &Config::norm, "norm of each part of a block")
        .one_of(decoder_detail::norm_names());
    f.add("norm_eps", &Config::norm_eps, "added to the variance in norms").above(0);
    f.add("activation", &Config::activation, "activation of the feed-forward")
        .one_of(decoder_detail::activation_names());
    f.add(
         "positions",
         &Config::positions,
         "relative: a learned bias of scores by distance, shared by a stack's layers, and scores "
         "without a scale; learned: a table for both stacks, as Megatron-LM has it; rope: queries and "
         "keys of each stack's own tokens rotate"
    )
        .one_of({"relative", "learned", "rope"});
    f.add("buckets", &Config::buckets, "distances that the relative bias tells apart").at_least(4);
    f.add(
         "max_distance",
         &Config::max_distance,
         "from which on all distances are the same to the relative bias"
    )
        .at_least(1)
        .unit("tokens");
    f.add("rope_base", &Config::rope_base, "base of the rotary wavelengths").above(0);
    f.add("bias", &Config::bias, "biases in all linear layers and in the head");
    f.add("tied", &Config::tied, "the output layer shares the word embedding's weight");
    f.add(
        "head_scale",
        &Config::head_scale,
        "hidden states are divided by sqrt(hidden) before the head; if absent where it is tied and "
        "positions are relative"
    );
    f.add(
         "dropout",
         &Config::dropout,
         "dropout after embeddings, on residual branches and before the head"
    )
        .unit("probability")
        .at_least(0)
        .below(1);
    f.add("attention_dropout", &Config::attention_dropout, "dropout on attention probabilities")
        .unit("probability")
        .at_least(0)
        .below(1);
    f.add(
         "init_std",
         &Config::init_std,
         "standard deviation of all initial weights; T5's own, by each layer's widths, if absent"
    )
        .at_least(0);
    f.add(
        "scaled_init",
        &Config::scaled_init,
        "divide the initial weights of each branch's last linear layer by sqrt(2 encoder_layers) in "
        "both stacks, as Megatron-LM does"
    );
    f.check("heads", [](const Config& c) -> std::string {
      return !c.head_dim && c.hidden % c.heads != 0
                 ? "hidden " + std::to_string(c.hidden) + " is not divisible by heads " +
                       std::to_string(c.heads) + ", and there is no head_dim"
                 : "";
    });
    f.check("positions", [](const Config& c) -> std::string {
      const int64_t dim = c.head_dim.value_or(c.hidden / c.heads);
      return c.rotary() && dim % 2 != 0
                 ? "rope rotates pairs, and heads have " + std::to_string(dim) + " elements"
                 : "";
    });
    f.check("buckets", [](const Config& c) -> std::string {
      return c.buckets % 4 != 0
                 ? "half of the buckets are for either side, half of these for single "
                   "distances: choose a multiple of 4"
                 : "";
    });
    f.check("max_distance", [](const Config& c) -> std::string {
      return c.relative() && c.max_distance <= c.buckets / 2
                 ? "the buckets of single distances reach to " + std::to_string(c.buckets / 2) +
                       " already; choose more"
                 : "";
    });
  }

  static Table scaled(const Config& whole, const ModelScale& to) {
    return {
        {"encoder_layers", std::min(whole.encoder_layers, to.layers)},
        {"encoder_length", std::min(whole.encoder_length, to.seq_length)}};
  }

  static HfMapping hugging_face_config() { return hugging_face_mapping(); }

  T5(const Config& config, const Args& args)
      : c_(complete(config, args))
      , std_(c_)
      , embed_{axis::embed, config.hidden}
      , seq_length_(args.seq_length) {}

  [[nodiscard]] Sequences sequences() const override { return {{kEncoder, c_.encoder_length}}; }

  [[nodiscard]] int64_t layers() const override { return c_.encoder_layers + c_.layers; }

  [[nodiscard]] int64_t vocab() const override { return *c_.vocab; }

  [[nodiscard]] std::unique_ptr<Block> embedding(Builder& builder) const override {
    return std::make_unique<EncoderWords>(builder, c_, embed_, positions());
  }

  [[nodiscard]] std::unique_ptr<Block> layer(int64_t index, Builder& builder) const override {
    if (index < c_.encoder_layers) {
      const auto tokens = builder.within(kEncoder);
      return std::make_unique<EncoderLayer>(block(index, builder));
    }
    if (index > c_.encoder_layers) {
      return block(index, builder);
    }
    auto memory_norm = builder.below("memory_norm", [&] {
      const auto tokens = builder.within(kEncoder);
      return norm(builder);
    });
    T5Embedding words(builder, c_, embed_, positions(), /*first=*/false);
    return std::make_unique<FirstDecoderLayer>(
        embed_, c_.dropout, std::move(memory_norm), std::move(words), block(index, builder)
    );
  }

  [[nodiscard]] std::unique_ptr<Block> head(Builder& builder) const override {
    auto final_norm = builder.below("norm", [&] { return norm(builder); });
    return std::make_unique<T5Head>(builder, c_, embed_, std::move(final_norm));
  }

  [[nodiscard]] std::vector<HfTensor> hugging_face() const override {
    return hugging_face_names(c_);
  }

  [[nodiscard]] std::vector<HfTensor> megatron() const override { return megatron_names(c_); }

private:
  [[nodiscard]] int64_t positions() const { return std::max(c_.encoder_length, seq_length_); }

  [[nodiscard]] std::unique_ptr<NormPart> norm(Builder& builder) const {
    return std::make_unique<Norm>(
        builder,
        NormSpec{
            .kind = norm_kind(c_.norm),
            .axis = embed_,
            .eps = c_.norm_eps,
            .seen = builder.place(embed_)}
    );
  }

  [[nodiscard]] AttentionSpec attention_spec(bool causal) const {
    AttentionSpec spec{
        .embed = embed_,
        .heads = c_.heads,
        .kv_heads = c_.heads,
        .head_dim = *c_.head_dim,
        .qkv_bias = c_.bias,
        .bias = c_.bias,
        .mask = {.causal = causal},
        .dropout = c_.attention_dropout,
        .std = std_.kv,
        .out_std = std_.out,
        .q_std = std_.q};
    if (c_.relative()) {
      spec.scale = 1;
    }
    return spec;
  }

  /// Attention to a stack's own tokens; its first layer makes the relative bias that all share.
  [[nodiscard]] AttentionSpec own_attention_spec(int64_t index) const {
    const bool decodes = index >= c_.encoder_layers;
    const int64_t first = decodes ? c_.encoder_layers : 0;
    AttentionSpec spec = attention_spec(/*causal=*/decodes);
    if (c_.rotary()) {
      spec.rotary = RotarySpec{.dim = *c_.head_dim, .base = c_.rope_base};
    }
    if (c_.relative()) {
      spec.relative_bias = RelativeBiasSpec{
          .buckets = c_.buckets,
          .max_distance = c_.max_distance,
          .bidirectional = !decodes,
          .std = std_.kv};
      if (index > first) {
        spec.relative_bias->table =
            "layers." + std::to_string(first) + ".attention.relative_bias.weight";
      }
    }
    return spec;
  }

  [[nodiscard]] FeedForwardSpec feed_forward_spec() const {
    return {
        .embed = embed_,
        .hidden = *c_.ffn_hidden,
        .activation = activation_kind(c_.activation),
        .bias = c_.bias,
        .std = std_.up,
        .out_std = std_.down};
  }

  [[nodiscard]] std::unique_ptr<Block> block(int64_t index, Builder& builder) const {
    DecoderParts parts{
        .norm = [this](Builder& b) { return norm(b); },
        .attention = [this, index](Builder& b
                     ) { return std::make_unique<Attention>(b, own_attention_spec(index)); },
        .feed_forward = [this](Builder& b
                        ) { return std::make_unique<FeedForward>(b, feed_forward_spec()); }};
    if (index >= c_.encoder_layers) {
      parts.cross_attention = [this](Builder& b) {
        return std::make_unique<CrossAttention>(b, attention_spec(/*causal=*/false), kEncoder);
      };
    }
    return std::make_unique<DecoderLayer>(builder, embed_, NormPlacement::pre, c_.dropout, parts);
  }

  Config c_;
  InitialStd std_;
  Axis embed_;
  int64_t seq_length_;
};

} // namespace
} // namespace mh::t5

MH_PLUGIN("org.megahost.t5", "0.1.0", "T5 encoder-decoder models", [](mh::Registry& registry) {
  registry.add<mh::t5::T5>("t5", "encoder and decoder with relative positions and cross attention");
});
