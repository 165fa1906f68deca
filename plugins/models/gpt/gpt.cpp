/// GPT-2 and its relatives: learned positions, LayerNorm, GELU, biases, a tied output layer.

#define MH_PLUGIN_LICENSE "Apache-2.0"
#include <megahost/nn/decoder.hpp>
#include <megahost/nn/decoder_hugging_face.hpp>
#include <megahost/plugin.hpp>

namespace {

using mh::HfKey;
using mh::HfTensor;

std::vector<HfKey> gpt_keys(int64_t vocab, int64_t length) {
  return {
      {.key = "vocab_size", .field = "vocab", .absent = vocab},
      {.key = "n_positions",
       .field = "seq_length",
       .absent = length,
       .aliases = {"max_position_embeddings"}},
      {.key = "n_embd", .field = "hidden", .absent = 768, .aliases = {"hidden_size"}},
      {.key = "n_layer", .field = "layers", .absent = 12, .aliases = {"num_hidden_layers"}},
      {.key = "n_head", .field = "heads", .absent = 12, .aliases = {"num_attention_heads"}},
      {.key = "layer_norm_epsilon", .field = "norm_eps", .absent = 1e-5},
      {.key = "tie_word_embeddings", .field = "tied", .absent = true},
  };
}

std::vector<std::string> heads_of_other_tasks() {
  return {
      "n_ctx",
      "n_special",
      "predict_special_tokens",
      "summary_activation",
      "summary_first_dropout",
      "summary_proj_to_labels",
      "summary_type",
      "summary_use_proj"};
}

/// transformers' GPT-2, and the first GPT, whose "gelu" is the one by tanh.
std::vector<mh::HfModel> models() {
  const std::vector<HfKey> gpt2{
      {.key = "n_inner", .field = "ffn_hidden"},
      {.key = "activation_function",
       .field = "activation",
       .absent = "gelu_new",
       .words =
           {{"gelu_new", "gelu_tanh"},
            {"gelu_pytorch_tanh", "gelu_tanh"},
            {"gelu_fast", "gelu_tanh"},
            {"gelu_accurate", "gelu_tanh"},
            {"gelu", "gelu"},
            {"gelu_python", "gelu"},
            {"relu2", "relu2"}}},
      {.key = "scale_attn_weights", .absent = true, .words = {{true}}},
      {.key = "scale_attn_by_inverse_layer_idx", .absent = false, .words = {{false}}},
  };
  std::vector<std::string> gpt2_harmless = heads_of_other_tasks();
  gpt2_harmless.emplace_back("reorder_and_upcast_attn"); // a matter of rounding
  const std::vector<HfKey> gpt1{
      {.key = "afn", .field = "activation", .absent = "gelu", .words = {{"gelu", "gelu_tanh"}}}};
  return {
      {.model_type = "gpt2",
       .architecture = "GPT2LMHeadModel",
       .keys = mh::joined({gpt_keys(/*vocab=*/50257, /*length=*/1024), gpt2}),
       .harmless = gpt2_harmless},
      {.model_type = "openai-gpt",
       .architecture = "OpenAIGPTLMHeadModel",
       .keys = mh::joined({gpt_keys(/*vocab=*/40478, /*length=*/512), gpt1}),
       .always = {{"norm_placement", "post"}},
       .harmless = heads_of_other_tasks()},
  };
}

class Gpt : public mh::Decoder {
public:
  struct Config : mh::DecoderConfig {};

  static void fields(mh::Fields<Config>& f) { mh::decoder_fields(f); }

  static mh::HfMapping hugging_face_config() {
    return {.models = models(), .free = mh::decoder_free(), .plain = mh::decoder_plain};
  }

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
