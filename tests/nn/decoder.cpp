// Decoders of many kinds read token by token, over a cache, as they do all tokens at once.

#include "megahost/nn/decoder.hpp"

#include "megahost/model.hpp"
#include "megahost/nn/attention.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include <doctest/doctest.h>

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
  SUBCASE("no positions, one key head") {
    c.positions = "none";
    c.kv_heads = 1;
  }
  compare(c);
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

TEST_CASE("a plugin's own norm, attention and activation replace those parts alone") {
  DecoderConfig c = gpt();
  c.bias = false;
  c.layers = 1;
  SUBCASE("one after the other") {}
  SUBCASE("in parallel") {
    c.parallel_residual = true;
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
