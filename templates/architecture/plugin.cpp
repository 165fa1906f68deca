// A decoder whose block is spelled out here, to be changed: x + attention(norm(x)), then
// x + feed_forward(norm(x)). Embedding, head and their options come from mh::Decoder.
//
// No line mentions a rank: layers name their axes, and parallel strategies split them.

#define MH_PLUGIN_LICENSE "MIT"
#include <megahost/nn/decoder.hpp>
#include <megahost/plugin.hpp>

namespace {

class @Name@ : public mh::Decoder {
public:
  struct Config : mh::DecoderConfig {
    Config() {
      layers = 4, hidden = 256, heads = 4;
      norm = "rmsnorm", positions = "rope", tied = false;
    }
  };

  // Each field is an option of the recipe's `model`: checked, documented, with a default.
  static void fields(mh::Fields<Config>& f) {
    f.add("layers", &Config::layers, "transformer blocks").at_least(1);
    f.add("hidden", &Config::hidden, "width of the residual stream").at_least(1);
    f.add("heads", &Config::heads, "attention heads").at_least(1);
    f.check("heads", [](const Config& c) -> std::string {
      return c.hidden % (2 * c.heads) == 0 ? "" : "hidden is not divisible by 2 heads";
    });
  }

  @Name@(const Config& config, const Args& args)
      : Decoder(config, args) {}

  std::unique_ptr<mh::Block> layer(int64_t, mh::Builder& builder) const override {
    return std::make_unique<Layer>(builder, config());
  }

private:
  class Layer : public mh::Block {
  public:
    Layer(mh::Builder& builder, const mh::DecoderConfig& c)
        : embed_{mh::axis::embed, c.hidden}
        , attention_norm_(part<mh::Norm>(builder, "attention_norm", norm(builder)))
        , attention_(part<mh::Attention>(
              builder,
              "attention",
              mh::AttentionSpec{
                  .embed = embed_,
                  .heads = c.heads,
                  .kv_heads = c.heads,
                  .head_dim = c.hidden / c.heads,
                  .rotary = mh::RotarySpec{.dim = c.hidden / c.heads}}
          ))
        , mlp_norm_(part<mh::Norm>(builder, "mlp_norm", norm(builder)))
        , mlp_(part<mh::FeedForward>(
              builder, "mlp", mh::FeedForwardSpec{.embed = embed_, .hidden = 4 * c.hidden}
          )) {}

    mh::State forward(const mh::State& state, mh::StepContext& context) const override {
      at::Tensor x = state["hidden"].value; // [S, B, E]
      x = x.add(attention_.forward(attention_norm_.forward(x), context));
      x = x.add(mlp_.forward(mlp_norm_.forward(x), context));
      return state.with("hidden", x);
    }

    // Attention knows the cache of generation; the other parts compute each row from itself.
    bool reads_cache() const override { return true; }

  private:
    /// A part whose parameters are called layers.N.NAME.something.
    template <class Part, class Spec>
    static Part part(mh::Builder& builder, const char* name, const Spec& spec) {
      const auto scope = builder.scope(name);
      return Part(builder, spec);
    }

    [[nodiscard]] mh::NormSpec norm(mh::Builder& builder) const {
      return {.kind = mh::NormKind::rmsnorm, .axis = embed_, .seen = builder.place(embed_)};
    }

    mh::Axis embed_;
    mh::Norm attention_norm_;
    mh::Attention attention_;
    mh::Norm mlp_norm_;
    mh::FeedForward mlp_;
  };
};

} // namespace

MH_PLUGIN("@id@", "0.1.0", "A plugin with a model", [](mh::Registry& registry) {
  registry.add<@Name@>("@name@", "a decoder with a block of its own");
})
