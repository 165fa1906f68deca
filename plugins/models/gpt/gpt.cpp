/// GPT-2 and its relatives: learned positions, LayerNorm, GELU, biases, a tied output layer. With
/// rotary positions and parallel branches it is GPT-NeoX; where these read one norm, Phi or Falcon.

#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "hugging_face.hpp"

#include <megahost/nn/decoder.hpp>
#include <megahost/plugin.hpp>

#include <vector>

namespace mh::gpt {
namespace {

class Gpt : public Decoder {
public:
  struct Config : DecoderConfig {};

  static void fields(Fields<Config>& f) { decoder_fields(f); }

  static HfMapping hugging_face_config() { return hugging_face_mapping(); }

  Gpt(const Config& config, const Args& args)
      : Decoder(config, args) {}

  [[nodiscard]] std::vector<HfTensor> hugging_face() const override {
    return hugging_face_names(config());
  }

  [[nodiscard]] std::vector<HfTensor> megatron() const override { return megatron_names(config()); }
};

} // namespace
} // namespace mh::gpt

MH_PLUGIN("org.megahost.gpt", "0.1.0", "GPT decoder models", [](mh::Registry& registry) {
  registry.add<mh::gpt::Gpt>(
      "gpt", "decoder with learned positions, LayerNorm, GELU and a tied output layer"
  );
});
