/// Llama and its relatives (Mistral, Qwen, OLMo 2, SmolLM3, Command-R): rotary positions, RMSNorm, SwiGLU,
/// grouped-query attention, an untied output.

#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "hugging_face.hpp"

#include <megahost/nn/decoder.hpp>
#include <megahost/plugin.hpp>

#include <vector>

namespace {

class Llama : public mh::Decoder {
public:
  using Config = mh::LlamaConfig;

  static void fields(mh::Fields<Config>& f) { mh::decoder_fields(f); }

  static mh::HfMapping hugging_face_config() { return llama_hugging_face(); }

  Llama(const Config& config, const Args& args)
      : Decoder(config, args) {}

  /// `transformers` LlamaForCausalLM, and with it Mistral, Qwen2, Qwen3 and SmolLM3; Exaone4 and
  /// OLMo 2 where norms are on the branches, Cohere where both parts read one norm.
  [[nodiscard]] std::vector<mh::HfTensor> hugging_face() const override {
    return mh::llama_names(config());
  }

  [[nodiscard]] std::vector<mh::HfTensor> megatron() const override {
    return mh::megatron_names(config());
  }
};

} // namespace

MH_PLUGIN("org.megahost.llama", "0.1.0", "Llama decoder models", [](mh::Registry& registry) {
  registry.add<Llama>(
      "llama", "decoder with rotary positions, RMSNorm, SwiGLU and grouped-query attention"
  );
});
