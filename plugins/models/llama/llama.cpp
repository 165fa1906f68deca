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
    return mh::llama_names(
        c,
        [&](int64_t, const std::string& theirs, const std::string& ours, auto& map) {
          const auto add = [&](const std::string& part) {
            map.push_back(
                {theirs + "mlp." + part + "_proj.weight", {ours + "mlp." + part + ".weight"}}
            );
            if (c.bias) {
              map.push_back(
                  {theirs + "mlp." + part + "_proj.bias", {ours + "mlp." + part + ".bias"}}
              );
            }
          };
          if (mh::is_gated(mh::activation_kind(c.activation))) {
            add("gate");
          }
          add("up");
          add("down");
        }
    );
  }
};

} // namespace

MH_PLUGIN("org.megahost.llama", "0.1.0", "Llama decoder models", [](mh::Registry& registry) {
  registry.add<Llama>(
      "llama", "decoder with rotary positions, RMSNorm, SwiGLU and grouped-query attention"
  );
});
