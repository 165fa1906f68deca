// Decoders of many kinds read token by token, over a cache, as they do all tokens at once.

#include "megahost/nn/decoder.hpp"

#include "megahost/model.hpp"
#include "megahost/nn/attention.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace mh;

namespace {

constexpr int64_t kSeq = 12;

DecoderConfig gpt() {
  DecoderConfig c;
  c.layers = 3;
  c.hidden = 16;
  c.heads = 4;
  c.init_std = 0.3;
  return c;
}

DecoderConfig llama() {
  DecoderConfig c = gpt();
  c.kv_heads = 2;
  c.norm = "rmsnorm";
  c.activation = "swiglu";
  c.positions = "rope";
  c.bias = false;
  c.tied = false;
  return c;
}

template <class Made>
struct ReaderOf {
  explicit ReaderOf(const DecoderConfig& config)
      : decoder(config, {.vocab = 30, .seq_length = kSeq})
      , model(
            decoder,
            {.mesh = &mesh, .rules = &rules, .dtype = at::kDouble, .seq = kSeq, .microbatch = 2}
        ) {}

  /// Logits of tokens `begin` to `end` - 1.
  at::Tensor logits(int64_t begin, int64_t end, KeyValueCache* cache, bool last = false) {
    const at::Tensor tokens = at::arange(kSeq * 2).view({kSeq, 2}) * 7 % 30;
    const Batch batch{
        .arrays =
            {{"tokens", tokens.narrow(0, begin, end - begin)},
             {"token_index", at::arange(begin, end)}},
        .samples = {0, 1},
        .seq = end - begin,
        .batch = 2};
    StepContext context(mesh, rules, batch, {.last_logits = last, .kv_cache = cache});
    const at::NoGradGuard no_grad;
    return model.forward(context)["logits"].value;
  }

  Mesh mesh;
  Rules rules;
  Made decoder;
  Model model;
};

using Reader = ReaderOf<Decoder>;

/// An architecture of its own, of the blocks that a Decoder is made of: embedding and output layer
/// of a configuration, layers of parts.
class OwnDecoder : public Architecture {
public:
  OwnDecoder(DecoderConfig config, const Args& args)
      : c_(std::move(config))
      , seq_length_(args.seq_length) {
    c_.vocab = args.vocab;
  }

  [[nodiscard]] int64_t layers() const override { return c_.layers; }

  [[nodiscard]] int64_t vocab() const override { return *c_.vocab; }

  [[nodiscard]] std::unique_ptr<Block> embedding(Builder& builder) const override {
    return std::make_unique<DecoderEmbedding>(builder, c_, seq_length_);
  }

  [[nodiscard]] std::unique_ptr<Block> layer(int64_t, Builder& builder) const override {
    const Axis embed{axis::embed, c_.hidden};
    const double out_std = c_.init_std / std::sqrt(2.0 * static_cast<double>(c_.layers));
    const AttentionSpec attention{
        .embed = embed,
        .heads = c_.heads,
        .kv_heads = c_.heads,
        .head_dim = c_.hidden / c_.heads,
        .qkv_bias = true,
        .bias = true,
        .mask = {.causal = true},
        .std = c_.init_std,
        .out_std = out_std};
    const FeedForwardSpec feed_forward{
        .embed = embed,
        .hidden = 4 * c_.hidden,
        .activation = ActivationKind::gelu_tanh,
        .bias = true,
        .std = c_.init_std,
        .out_std = out_std};
    return std::make_unique<DecoderLayer>(
        builder,
        embed,
        NormPlacement::pre,
        c_.dropout,
        DecoderParts{
            .norm = [&](Builder& b) { return norm(b); },
            .attention = [&](Builder& b) { return std::make_unique<Attention>(b, attention); },
            .feed_forward = [&](Builder& b
                            ) { return std::make_unique<FeedForward>(b, feed_forward); }}
    );
  }

  [[nodiscard]] std::unique_ptr<Block> head(Builder& builder) const override {
    return std::make_unique<DecoderHead>(
        builder,
        c_,
        seq_length_,
        DecoderHeadParts{.final_norm = [&](Builder& b) { return norm(b); }}
    );
  }

private:
  [[nodiscard]] std::unique_ptr<NormPart> norm(Builder& builder) const {
    const Axis embed{axis::embed, c_.hidden};
    return std::make_unique<Norm>(
        builder, NormSpec{.axis = embed, .eps = c_.norm_eps, .seen = builder.place(embed)}
    );
  }

  DecoderConfig c_;
  int64_t seq_length_;
};

void compare(const DecoderConfig& config) {
  Reader reader(config);
  const at::Tensor whole = reader.logits(0, kSeq, nullptr);
  CHECK(whole.std().item().toDouble() > 0.1);
  KeyValueCache cache(kSeq);
  std::vector<at::Tensor> parts = {reader.logits(0, 5, &cache)};
  for (int64_t i = 5; i < kSeq; ++i) {
    parts.push_back(reader.logits(i, i + 1, &cache));
  }
  CHECK(reader.model.reads_cache());
  CHECK((at::cat(parts) - whole).abs().max().item().toDouble() < 1e-12);
  const at::Tensor last = reader.logits(0, kSeq, nullptr, true);
  CHECK(last.size(0) == 1);
  CHECK((last[0] - whole[kSeq - 1]).abs().max().item().toDouble() < 1e-12);
}

} // namespace

TEST_CASE("decoders read token by token as they do all at once") {
  DecoderConfig c = llama();
  SUBCASE("gpt") {
    c = gpt();
  }
  SUBCASE("gpt, norms after the sums") {
    c = gpt();
    c.norm_placement = "post";
  }
  SUBCASE("llama") {}
  SUBCASE("a window in every layer") {
    c.window = 3;
  }
  SUBCASE("windows in two of three layers, query-key norm, yarn, norms on the branches") {
    c.window = 4;
    c.window_pattern = {"window", "global", "window"};
    c.qk_norm = true;
    c.norm_placement = "branch";
    c.rope_scaling = "yarn";
    c.rope_factor = 4;
    c.rope_original_length = 16;
  }
  SUBCASE("windows with a rotary base of their own, norms on both sides, a scaled embedding") {
    c.window = 4;
    c.window_pattern = {"window", "global"};
    c.window_rope_base = 50;
    c.qk_norm = true;
    c.norm = "rmsnorm_1p";
    c.norm_placement = "sandwich";
    c.scaled_embedding = true;
    c.score_dim = 5;
  }
  SUBCASE("bounded scores and logits, windows in every second layer") {
    c.window = 4;
    c.window_pattern = {"window", "global"};
    c.score_cap = 0.7;
    c.logit_cap = 2;
  }
  SUBCASE("attention sinks, windows in every second layer, clamped gates, biases") {
    c.window = 4;
    c.window_pattern = {"window", "global"};
    c.sinks = true;
    c.activation = "swiglu_clamped";
    c.bias = true;
    c.rope_scaling = "yarn";
    c.rope_factor = 4;
    c.rope_original_length = 16;
    c.rope_truncate = false;
  }
  SUBCASE("a gate of what heads give, biases of queries, keys and values") {
    c.attention_gate = true;
    c.qkv_bias = true;
  }
  SUBCASE("query-key norm over all heads, norms on the branches") {
    c.qk_norm = true;
    c.qk_norm_over = "all_heads";
    c.norm_placement = "branch";
  }
  SUBCASE("parallel branches, biases, a part of each head rotated") {
    c = gpt();
    c.positions = "rope";
    c.rope_share = 0.5;
    c.parallel_residual = true;
  }
  SUBCASE("parallel branches that read one norm, one key head, a bias in the output layer") {
    c = gpt();
    c.positions = "rope";
    c.parallel_residual = true;
    c.shared_norm = true;
    c.kv_heads = 1;
    c.head_bias = true;
    c.tied = false;
  }
  SUBCASE("neighbours of a part of each head rotated, layernorm without bias, a scale of logits") {
    c.norm = "layernorm_no_bias";
    c.parallel_residual = true;
    c.shared_norm = true;
    c.rope_pairs = "adjacent";
    c.rope_share = 0.5;
    c.logit_scale = 0.5;
  }
  SUBCASE("layers without a window know no positions, heads whose norms have weights of their own"
  ) {
    c.window = 4;
    c.window_pattern = {"window", "global"};
    c.rope_pattern = {"rope", "none"};
    c.qk_norm = true;
    c.qk_norm_over = "own_head";
    c.qk_norm_kind = "layernorm_no_bias";
  }
  SUBCASE("a bias by distance, in windows") {
    c.positions = "alibi";
    c.window = 4;
    c.window_pattern = {"window", "global"};
    c.sinks = true;
  }
  SUBCASE("longrope beyond its first length") {
    c.rope_scaling = "longrope";
    c.rope_factor = 4;
    c.rope_original_length = 6;
    c.rope_short_factors = {1, 1};
    c.rope_long_factors = {2, 7};
  }
  SUBCASE("no positions, one key head") {
    c.positions = "none";
    c.kv_heads = 1;
  }
  compare(c);
}

namespace {

/// The most that logits of two models with the same weights lie apart.
double apart(const DecoderConfig& one, const DecoderConfig& other) {
  const at::Tensor logits = Reader(one).logits(0, kSeq, nullptr);
  return (logits - Reader(other).logits(0, kSeq, nullptr)).abs().max().item().toDouble();
}

} // namespace

TEST_CASE("layers that do not rotate know no positions") {
  DecoderConfig c = llama(), none = c;
  none.positions = "none";
  c.rope_pattern = {"none", "none", "none", "rope"}; // the fourth layer is not there
  CHECK(apart(c, none) == 0);
  c.rope_pattern = {"rope"};
  CHECK(apart(c, llama()) == 0);
  c.rope_pattern = {"rope", "none"};
  CHECK(apart(c, llama()) > 1e-3);
  CHECK(apart(c, none) > 1e-3);
}

TEST_CASE("longrope takes its factors by the length of the model") {
  DecoderConfig c = llama(), other = c;
  c.rope_scaling = "longrope";
  c.rope_factor = 4;
  c.rope_original_length = kSeq;
  c.rope_short_factors = {1, 1};
  c.rope_long_factors = {4, 4};
  c.rope_attention = 1;
  CHECK(apart(c, other) == 0);
  c.rope_original_length = kSeq - 1;
  other.rope_scaling = "linear";
  other.rope_factor = 4;
  CHECK(apart(c, other) < 1e-12);
  c.rope_attention = std::nullopt;
  CHECK(apart(c, other) > 1e-3);
}

TEST_CASE("a window changes what tokens beyond it see, and only that") {
  DecoderConfig c = llama();
  Reader all(c);
  c.window = 6;
  Reader windowed(c);
  const at::Tensor difference =
      (all.logits(0, kSeq, nullptr) - windowed.logits(0, kSeq, nullptr)).abs().amax({1, 2});
  CHECK(difference.narrow(0, 0, 6).max().item().toDouble() < 1e-12);
  CHECK(difference.narrow(0, 6, 6).min().item().toDouble() > 1e-6);
  c.window_pattern = {"global"};
  Reader global(c);
  CHECK(at::equal(global.logits(0, kSeq, nullptr), all.logits(0, kSeq, nullptr)));
}

namespace {

/// A norm, an attention and an activation that the tree does not have.
class Own : public Decoder {
public:
  using Decoder::Decoder;

  struct Halved : NormPart {
    [[nodiscard]] at::Tensor forward(const at::Tensor& x) const override { return x * 0.5; }
  };

  struct Negated : AttentionPart {
    explicit Negated(std::unique_ptr<AttentionPart> usual)
        : inner(std::move(usual)) {}

    [[nodiscard]] at::Tensor forward(const at::Tensor& x, StepContext& context) const override {
      return -inner->forward(x, context);
    }

    [[nodiscard]] bool reads_cache() const override { return inner->reads_cache(); }

    std::unique_ptr<AttentionPart> inner;
  };

protected:
  [[nodiscard]] std::unique_ptr<NormPart> norm(Builder&) const override {
    return std::make_unique<Halved>();
  }

  [[nodiscard]] std::unique_ptr<AttentionPart>
  attention(int64_t index, Builder& builder) const override {
    return std::make_unique<Negated>(Decoder::attention(index, builder));
  }

  [[nodiscard]] std::unique_ptr<FeedForwardPart>
  feed_forward(int64_t, Builder& builder) const override {
    FeedForwardSpec spec = feed_forward_spec();
    spec.activation =
        ActivationFunction(/*gated=*/false, [](const at::Tensor& x) { return x.tanh(); });
    return std::make_unique<FeedForward>(builder, spec);
  }
};

} // namespace

TEST_CASE("a scale of logits and a bias of the output layer") {
  DecoderConfig c = llama();
  c.head_bias = true;
  Reader plain(c);
  c.logit_scale = 0.25;
  Reader scaled(c);
  const at::Tensor whole = plain.logits(0, kSeq, nullptr);
  CHECK((scaled.logits(0, kSeq, nullptr) - whole * 0.25).abs().max().item().toDouble() < 1e-12);
  for (Reader* reader : {&plain, &scaled}) { // a bias begins at 0, and has no scale
    Parameter* bias = reader->model.parameters().find("head.bias");
    REQUIRE(bias != nullptr);
    const at::NoGradGuard no_grad;
    CHECK(bias->value.abs().max().item().toDouble() == 0);
    bias->value.fill_(2);
  }
  CHECK((plain.logits(0, kSeq, nullptr) - whole - 2).abs().max().item().toDouble() < 1e-12);
  CHECK((scaled.logits(0, kSeq, nullptr) - whole * 0.25 - 2).abs().max().item().toDouble() < 1e-12);
}

TEST_CASE("neighbours that rotate give the scores of halves whose rows are arranged so") {
  DecoderConfig c = llama();
  c.head_dim = 8;
  c.rope_share = 0.5;
  Reader halves(c);
  c.rope_pairs = "adjacent";
  Reader adjacent(c);
  CHECK_FALSE(at::allclose(adjacent.logits(0, kSeq, nullptr), halves.logits(0, kSeq, nullptr)));
  const at::NoGradGuard no_grad;
  for (Parameter& parameter : halves.model.parameters().all()) {
    for (const Piece& piece : parameter.pieces) {
      if (!piece.name.ends_with("attention.q.weight") &&
          !piece.name.ends_with("attention.k.weight")) {
        continue;
      }
      const at::Tensor rows = parameter.view(parameter.value, piece).view({-1, 8, 16});
      const at::Tensor order =
          at::tensor({0, 2, 1, 3, 4, 5, 6, 7}); // neighbours of the 4 that rotate
      rows.copy_(rows.index_select(1, order));
    }
  }
  const at::Tensor difference = adjacent.logits(0, kSeq, nullptr) - halves.logits(0, kSeq, nullptr);
  CHECK(difference.abs().max().item().toDouble() < 1e-12);
}

TEST_CASE("embeddings begin with a standard deviation of their own") {
  DecoderConfig c = gpt();
  c.hidden = 64;
  const auto deviation = [](Reader& reader, const char* name) {
    Parameter* parameter = reader.model.parameters().find(name);
    REQUIRE(parameter != nullptr);
    return parameter->value.detach().narrow(0, 0, kSeq).std().item().toDouble();
  };
  Reader usual(c);
  c.embedding_std = 3;
  Reader own(c);
  for (const char* name : {"embedding.word.weight", "embedding.position.weight"}) {
    CHECK(deviation(usual, name) == doctest::Approx(0.3).epsilon(0.1));
    CHECK(deviation(own, name) == doctest::Approx(3).epsilon(0.1));
  }
  CHECK(deviation(own, "layers.0.mlp.up.weight") == doctest::Approx(0.3).epsilon(0.1));
}

TEST_CASE("a plugin's own norm, attention and activation replace those parts alone") {
  DecoderConfig c = gpt();
  c.bias = false;
  c.layers = 1;
  SUBCASE("one after the other") {}
  SUBCASE("in parallel") {
    c.parallel_residual = true;
  }
  SUBCASE("in parallel, of one norm") {
    c.parallel_residual = true;
    c.shared_norm = true;
  }
  ReaderOf<Own> own(c);
  Reader usual(c);
  std::vector<std::string> names, expected;
  for (const auto& parameter : own.model.parameters().all()) {
    for (const auto& piece : parameter.pieces) {
      names.push_back(piece.name);
    }
  }
  for (const auto& parameter : usual.model.parameters().all()) {
    for (const auto& piece : parameter.pieces) {
      if (piece.name.find("norm") == std::string::npos) {
        expected.push_back(piece.name);
      }
    }
  }
  CHECK(names == expected);

  // By hand, of the same weights: attention of a sequence of one token is its value.
  const auto weight = [&](const std::string& name) {
    Parameter* parameter = own.model.parameters().find(name);
    REQUIRE(parameter != nullptr);
    for (const Piece& piece : parameter->pieces) {
      if (piece.name == name) {
        return parameter->view(parameter->value.detach(), piece);
      }
    }
    return at::Tensor();
  };
  at::Tensor x = weight("embedding.word.weight").narrow(0, 0, 1) +
                 weight("embedding.position.weight").narrow(0, 0, 1);
  const auto product = [&](const at::Tensor& in, const std::string& name) {
    return in.matmul(weight("layers.0." + name + ".weight").t());
  };
  const at::Tensor in = x;
  x = x - product(product(x * 0.5, "attention.v"), "attention.out");
  const at::Tensor& read = c.parallel_residual ? in : x;
  x = x + product(product(read * 0.5, "mlp.up").tanh(), "mlp.down");
  const at::Tensor scores = (x * 0.5).matmul(weight("embedding.word.weight").t());
  const at::Tensor found = own.logits(0, 1, nullptr)[0][0].narrow(0, 0, 30); // token 0 of sample 0
  CHECK((found - scores[0].narrow(0, 0, 30)).abs().max().item().toDouble() < 1e-12);
  CHECK(own.model.reads_cache());
}

TEST_CASE("an architecture of its own may be made of a decoder's blocks") {
  Reader reader(gpt());
  ReaderOf<OwnDecoder> own(gpt());
  CHECK(at::equal(reader.logits(0, kSeq, nullptr), own.logits(0, kSeq, nullptr)));
  KeyValueCache cache(kSeq);
  static_cast<void>(own.logits(0, 5, &cache));
  const at::Tensor last = own.logits(5, kSeq, &cache);
  CHECK(at::allclose(last, reader.logits(0, kSeq, nullptr).narrow(0, 5, kSeq - 5), 1e-9, 1e-9));
}
