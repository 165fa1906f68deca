/// Llama and its relatives (Mistral, Qwen): rotary positions, RMSNorm, SwiGLU, grouped-query
/// attention, an untied output.

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

  /// `transformers` LlamaForCausalLM, and with it Mistral, Qwen2 and Qwen3; Exaone4 where norms are
  /// on the branches.
  [[nodiscard]] std::vector<mh::HfTensor> hugging_face() const override {
    const auto& c = config();
    if (c.norm_placement == "post" || c.positions == "learned") {
      return {};
    }
    const bool shifted = c.norm == "layernorm"; // such norms have biases
    std::vector<mh::HfTensor> map = {
        {"model.embed_tokens.weight", {"embedding.word.weight"}},
        {"model.norm.weight", {"head.norm.weight"}}};
    if (shifted) {
      map.push_back({"model.norm.bias", {"head.norm.bias"}});
    }
    if (!c.tied) {
      map.push_back({"lm_head.weight", {"head.weight"}});
    }
    const bool branch = c.norm_placement == "branch";
    for (int64_t i = 0; i < layers(); ++i) {
      const std::string ours = "layers." + std::to_string(i) + ".";
      const std::string theirs = "model.layers." + std::to_string(i) + ".";
      const auto add = [&](const std::string& name, const std::string& piece, bool bias) {
        map.push_back({theirs + name + ".weight", {ours + piece + ".weight"}});
        if (bias) {
          map.push_back({theirs + name + ".bias", {ours + piece + ".bias"}});
        }
      };
      add(branch ? "post_attention_layernorm" : "input_layernorm", "attention_norm", shifted);
      add(branch ? "post_feedforward_layernorm" : "post_attention_layernorm", "mlp_norm", shifted);
      add("self_attn.q_proj", "attention.q", *c.qkv_bias);
      add("self_attn.k_proj", "attention.k", *c.qkv_bias);
      add("self_attn.v_proj", "attention.v", *c.qkv_bias);
      add("self_attn.o_proj", "attention.out", c.bias);
      if (c.qk_norm) {
        add("self_attn.q_norm", "attention.q_norm", false);
        add("self_attn.k_norm", "attention.k_norm", false);
      }
      if (mh::is_gated(mh::activation_kind(c.activation))) {
        add("mlp.gate_proj", "mlp.gate", c.bias);
      }
      add("mlp.up_proj", "mlp.up", c.bias);
      add("mlp.down_proj", "mlp.down", c.bias);
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
