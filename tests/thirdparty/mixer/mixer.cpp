// A model that megahost does not come with: tokens are mixed by a gated running mean instead of
// attention.
//
//   x + out(silu(gate(n)) * mean over the past of value(n)), n = norm(x)

#include <megahost/architecture.hpp>
#include <megahost/nn/embedding.hpp>
#include <megahost/nn/linear.hpp>
#include <megahost/nn/norm.hpp>
#include <megahost/nn/vocab.hpp>
#include <megahost/plugin.hpp>

#include <ATen/ops/cumsum.h>
#include <ATen/ops/silu.h>

namespace {

struct Config {
  int64_t layers = 2;
  int64_t hidden = 64;
};

mh::Axis embed(const Config& c) {
  return {mh::axis::embed, c.hidden};
}

class Words : public mh::Block {
public:
  Words(mh::Builder& builder, const Config& c, int64_t vocab)
      : embed_(embed(c))
      , table_(builder, {mh::axis::vocab, vocab}, embed_, 0.02) {}

  mh::State forward(const mh::State&, mh::StepContext& context) const override {
    return {"hidden", table_.forward(context.array("tokens"), context), context.dims(embed_)};
  }

private:
  mh::Axis embed_;
  mh::Embedding table_;
};

class Mixer : public mh::Block {
public:
  Mixer(mh::Builder& builder, const Config& c)
      : norm_(
            builder,
            {.kind = mh::NormKind::rmsnorm, .axis = embed(c), .seen = builder.place(embed(c))}
        )
      , in_(builder,
            {.in = embed(c),
             .outs = {{"gate", {mh::axis::mlp, c.hidden}}, {"value", {mh::axis::mlp, c.hidden}}}})
      , out_(builder, {.in = {mh::axis::mlp, c.hidden}, .outs = {{"out", embed(c)}}}) {}

  mh::State forward(const mh::State& state, mh::StepContext& context) const override {
    const at::Tensor x = state["hidden"].value;                           // [S, B, E]
    const auto parts = in_.parts(in_.forward(norm_.forward(x), context)); // 2 x [S, B, E]
    const at::Tensor counts = context.positions().add(1).unsqueeze(2).to(x.dtype()); // [S, 1, 1]
    const at::Tensor mean = at::cumsum(parts[1], 0).div(counts);
    return state.with("hidden", x.add(out_.forward(at::silu(parts[0]).mul(mean), context)));
  }

private:
  mh::Norm norm_;
  mh::Linear in_, out_;
};

class Head : public mh::Block {
public:
  Head(mh::Builder& builder, const Config& c, int64_t vocab)
      : vocab_{mh::axis::vocab, vocab}
      , head_(builder, embed(c), vocab_, 0.02) {}

  mh::State forward(const mh::State& state, mh::StepContext& context) const override {
    const at::Tensor& x = state["hidden"].value;
    if (!context.has_array("labels")) {
      return {"logits", head_.logits(x, context), context.dims(vocab_)};
    }
    context.add_loss(
        {"lm loss",
         head_.loss(x, context.array("labels"), context.array("loss_mask"), context),
         "loss_mask"}
    );
    return {};
  }

private:
  mh::Axis vocab_;
  mh::VocabHead head_;
};

class MixerModel : public mh::Architecture {
public:
  using Config = ::Config;

  static void fields(mh::Fields<Config>& f) {
    f.add("layers", &Config::layers, "mixing blocks").at_least(1);
    f.add("hidden", &Config::hidden, "width of the residual stream").at_least(1);
  }

  MixerModel(const Config& config, const Args& args)
      : config_(config)
      , vocab_(args.vocab) {}

  int64_t layers() const override { return config_.layers; }

  int64_t vocab() const override { return vocab_; }

  std::unique_ptr<mh::Block> embedding(mh::Builder& builder) const override {
    return std::make_unique<Words>(builder, config_, vocab_);
  }

  std::unique_ptr<mh::Block> layer(int64_t, mh::Builder& builder) const override {
    return std::make_unique<Mixer>(builder, config_);
  }

  std::unique_ptr<mh::Block> head(mh::Builder& builder) const override {
    return std::make_unique<Head>(builder, config_, vocab_);
  }

private:
  Config config_;
  int64_t vocab_;
};

} // namespace

MH_PLUGIN("org.example.mixer", "0.1.0", "A model with running means", [](mh::Registry& registry) {
  registry.add<MixerModel>("mixer", "gated running means instead of attention");
})
