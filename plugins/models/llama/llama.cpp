/// Llama and its relatives: rotary positions, RMSNorm, SwiGLU, grouped-query attention, an untied
/// output.

#define MH_PLUGIN_LICENSE "Apache-2.0"
#include <megahost/nn/decoder.hpp>
#include <megahost/plugin.hpp>

namespace {

class Llama : public mh::Decoder {
public:
  struct Config : mh::DecoderConfig {
    Config() {
      norm = "rmsnorm";
      activation = "swiglu";
      positions = "rope";
      bias = false;
      tied = false;
    }
  };

  static void fields(mh::Fields<Config>& f) { mh::decoder_fields(f); }

  Llama(const Config& config, const Args& args)
      : Decoder(config, args) {}

  /// `transformers` LlamaForCausalLM.
  [[nodiscard]] std::vector<mh::HfTensor> hugging_face() const override {
    std::vector<mh::HfTensor> map = {
        {"model.embed_tokens.weight", {"embedding.word.weight"}},
        {"model.norm.weight", {"head.norm.weight"}}};
    if (!config().tied) {
      map.push_back({"lm_head.weight", {"head.weight"}});
    }
    for (int64_t i = 0; i < layers(); ++i) {
      const std::string ours = "layers." + std::to_string(i) + ".";
      const std::string theirs = "model.layers." + std::to_string(i) + ".";
      const auto product = [&](const std::string& name, const std::string& piece, bool bias) {
        map.push_back({theirs + name + ".weight", {ours + piece + ".weight"}});
        if (bias) {
          map.push_back({theirs + name + ".bias", {ours + piece + ".bias"}});
        }
      };
      product("input_layernorm", "attention_norm", false);
      product("post_attention_layernorm", "mlp_norm", false);
      product("self_attn.q_proj", "attention.q", *config().qkv_bias);
      product("self_attn.k_proj", "attention.k", *config().qkv_bias);
      product("self_attn.v_proj", "attention.v", *config().qkv_bias);
      product("self_attn.o_proj", "attention.out", config().bias);
      product("mlp.gate_proj", "mlp.gate", config().bias);
      product("mlp.up_proj", "mlp.up", config().bias);
      product("mlp.down_proj", "mlp.down", config().bias);
    }
    return map;
  }
};

} // namespace

MH_PLUGIN("org.megahost.llama", "0.1.0", "Llama decoder models", [](mh::Registry& registry) {
  registry.add<Llama>(
      "llama", "decoder with rotary positions, RMSNorm, SwiGLU and grouped-query attention"
  );
});
