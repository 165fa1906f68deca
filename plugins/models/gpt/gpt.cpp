/// GPT-2 and its relatives: learned positions, LayerNorm, GELU, biases, a tied output layer.

#define MH_PLUGIN_LICENSE "Apache-2.0"
#include <megahost/nn/decoder.hpp>
#include <megahost/plugin.hpp>

namespace {

using mh::HfTensor;

class Gpt : public mh::Decoder {
public:
  struct Config : mh::DecoderConfig {};

  static void fields(mh::Fields<Config>& f) { mh::decoder_fields(f); }

  Gpt(const Config& config, const Args& args)
      : Decoder(config, args) {}

  /// `transformers` GPT2LMHeadModel, or OpenAIGPTLMHeadModel where norms come after the sums:
  /// weights are [in, out], query, key and value in one.
  [[nodiscard]] std::vector<HfTensor> hugging_face() const override {
    const auto& c = config();
    const bool post = c.norm_placement == "post";
    if (c.norm_placement == "branch" || c.norm != "layernorm" || c.positions != "learned" ||
        !c.bias || !*c.qkv_bias || c.qk_norm || mh::is_gated(mh::activation_kind(c.activation))) {
      return {};
    }
    std::vector<HfTensor> map;
    if (post) {
      map = {
          {"transformer.tokens_embed.weight", {"embedding.word.weight"}},
          {"transformer.positions_embed.weight", {"embedding.position.weight"}}};
    } else {
      map = {
          {"transformer.wte.weight", {"embedding.word.weight"}},
          {"transformer.wpe.weight", {"embedding.position.weight"}},
          {"transformer.ln_f.weight", {"head.norm.weight"}},
          {"transformer.ln_f.bias", {"head.norm.bias"}}};
    }
    if (!c.tied) {
      map.push_back({"lm_head.weight", {"head.weight"}});
    }
    for (int64_t i = 0; i < layers(); ++i) {
      const std::string ours = "layers." + std::to_string(i) + ".";
      const std::string theirs = "transformer.h." + std::to_string(i) + ".";
      const auto product = [&](const std::string& name, const std::vector<std::string>& pieces) {
        HfTensor weight{theirs + name + ".weight", {}, /*transpose=*/true};
        HfTensor bias{theirs + name + ".bias", {}};
        for (const auto& piece : pieces) {
          weight.ours.push_back(ours + piece + ".weight");
          bias.ours.push_back(ours + piece + ".bias");
        }
        map.push_back(weight);
        map.push_back(bias);
      };
      for (const auto& [name, norm] : {std::pair{"ln_1", "attention_norm"}, {"ln_2", "mlp_norm"}}) {
        for (const auto* part : {".weight", ".bias"}) {
          map.push_back({theirs + name + part, {ours + norm + part}});
        }
      }
      product("attn.c_attn", {"attention.q", "attention.k", "attention.v"});
      product("attn.c_proj", {"attention.out"});
      product("mlp.c_fc", {"mlp.up"});
      product("mlp.c_proj", {"mlp.down"});
    }
    return map;
  }
};

} // namespace

MH_PLUGIN("org.megahost.gpt", "0.1.0", "GPT decoder models", [](mh::Registry& registry) {
  registry.add<Gpt>(
      "gpt", "decoder with learned positions, LayerNorm, GELU and a tied output layer"
  );
});
