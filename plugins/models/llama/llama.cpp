/// Llama and its relatives (Mistral, Qwen, OLMo 2, Command-R): rotary positions, RMSNorm, SwiGLU,
/// grouped-query attention, an untied output.

#define MH_PLUGIN_LICENSE "Apache-2.0"
#include <megahost/error.hpp>
#include <megahost/nn/decoder.hpp>
#include <megahost/nn/decoder_hugging_face.hpp>
#include <megahost/plugin.hpp>

namespace {

/// Rows of the biases that Llama may have: ours are in all linear layers, or in query, key and value.
std::vector<mh::HfKey> bias_keys() {
  return {
      {.key = "attention_bias", .field = "qkv_bias", .absent = false},
      {.key = "mlp_bias", .field = "bias", .absent = false},
  };
}

/// transformers' attention_bias is of attention's output too, our `bias` of that and the
/// feed-forward.
void simplify_llama(mh::Table& config) {
  mh::simplify_rope(config);
  const mh::Value& attention = *config.find("attention_bias");
  if (!(attention == *config.find("mlp_bias"))) {
    throw mh::Error(
        attention.origin.where() + ": attention_bias is " + to_text(attention) +
            " and mlp_bias is not, which llama cannot do",
        "both or none",
        mh::exit_code::data
    );
  }
}

/// attention_bias of Qwen3, OLMo 2 and Cohere: biases of the attention alone, which llama has not.
mh::HfKey no_attention_bias() {
  return {.key = "attention_bias", .absent = false, .words = {{false}}};
}

void simplify_qwen(mh::Table& config) {
  mh::simplify_rope(config);
  mh::simplify_windows(config);
}

/// transformers' Cohere: Command-R. Its R+, whose queries and keys have norms with weights of their own
/// for each head, is not among them.
mh::HfModel cohere() {
  auto keys = mh::joined(
      {mh::llama_keys(
           {.vocab = 256000,
            .hidden = 8192,
            .ffn_hidden = 22528,
            .layers = 40,
            .heads = 64,
            .rope_base = 500000,
            .length = 8192}
       ),
       {{.key = "tie_word_embeddings", .field = "tied", .absent = true},
        {.key = "logit_scale", .field = "logit_scale", .absent = 0.0625},
        {.key = "use_qk_norm", .absent = false, .words = {{false}}},
        no_attention_bias()}}
  );
  std::erase_if(keys, [](const mh::HfKey& key) { return key.key == "rms_norm_eps"; });
  keys.push_back({.key = "layer_norm_eps", .field = "norm_eps", .absent = 1e-5});
  return {
      .model_type = "cohere",
      .architecture = "CohereForCausalLM",
      .keys = keys,
      .always =
          {{"norm", "layernorm_no_bias"},
           {"parallel_residual", true},
           {"shared_norm", true},
           {"rope_pairs", "adjacent"}},
      .harmless = {"model_max_length"},
      .simplify = [](mh::Table& config) { mh::simplify_rope(config); }};
}

std::vector<mh::HfModel> models() {
  using mh::joined;
  using mh::llama_keys;
  const mh::LlamaDefaults qwen{
      .vocab = 151936,
      .hidden = 4096,
      .ffn_hidden = 22016,
      .layers = 32,
      .heads = 32,
      .kv_heads = 32,
      .length = 32768};
  mh::LlamaDefaults qwen3 = qwen;
  qwen3.head_dim = 128;
  return {
      {.model_type = "llama",
       .architecture = "LlamaForCausalLM",
       .keys = joined(
           {llama_keys(
                {.vocab = 32000,
                 .hidden = 4096,
                 .ffn_hidden = 11008,
                 .layers = 32,
                 .heads = 32,
                 .length = 2048}
            ),
            bias_keys()}
       ),
       .harmless = {"max_sequence_length"},
       .simplify = simplify_llama},
      {.model_type = "mistral",
       .architecture = "MistralForCausalLM",
       .keys = joined(
           {llama_keys(
                {.vocab = 32000,
                 .hidden = 4096,
                 .ffn_hidden = 14336,
                 .layers = 32,
                 .heads = 32,
                 .kv_heads = 8,
                 .length = 131072}
            ),
            {{.key = "sliding_window", .field = "window", .absent = 4096}}}
       ),
       .simplify = [](mh::Table& config) { mh::simplify_rope(config); }},
      {.model_type = "qwen2",
       .architecture = "Qwen2ForCausalLM",
       .keys = joined({llama_keys(qwen), mh::window_keys()}),
       .always = {{"qkv_bias", true}},
       .simplify = simplify_qwen,
       .restore = mh::restore_windows},
      {.model_type = "qwen3",
       .architecture = "Qwen3ForCausalLM",
       .keys = joined({llama_keys(qwen3), mh::window_keys(), {no_attention_bias()}}),
       .always = {{"qk_norm", true}},
       .simplify = simplify_qwen,
       .restore = mh::restore_windows},
      {.model_type = "exaone4", // its layers without a window do not rotate, unless none has one
       .architecture = "Exaone4ForCausalLM",
       .keys = joined(
           {llama_keys(
                {.vocab = 102400,
                 .hidden = 4096,
                 .ffn_hidden = 16384,
                 .layers = 32,
                 .heads = 32,
                 .kv_heads = 32,
                 .norm_eps = 1e-5,
                 .length = 2048}
            ),
            {{.key = "sliding_window", .absent = 4096, .words = {{mh::Value()}}}}}
       ),
       .always = {{"qk_norm", true}, {"norm_placement", "branch"}},
       .harmless = {"sliding_window_pattern", "layer_types"},
       .simplify = [](mh::Table& config) { mh::simplify_rope(config); },
       .restore = mh::restore_layer_types}, // which transformers cannot derive without a window
      {.model_type = "olmo2",
       .architecture = "Olmo2ForCausalLM",
       .keys = joined(
           {llama_keys(
                {.vocab = 50304,
                 .hidden = 4096,
                 .ffn_hidden = 11008,
                 .layers = 32,
                 .heads = 32,
                 .norm_eps = 1e-5,
                 .length = 2048}
            ),
            {no_attention_bias()}}
       ),
       .always = {{"qk_norm", true}, {"qk_norm_over", "all_heads"}, {"norm_placement", "branch"}},
       .simplify = [](mh::Table& config) { mh::simplify_rope(config); }},
      cohere(),
  };
}

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

  static mh::HfMapping hugging_face_config() {
    return {.models = models(), .free = mh::decoder_free(), .plain = mh::decoder_plain};
  }

  Llama(const Config& config, const Args& args)
      : Decoder(config, args) {}

  /// `transformers` LlamaForCausalLM, and with it Mistral, Qwen2 and Qwen3; Exaone4 and OLMo 2
  /// where norms are on the branches, Cohere where both parts read one norm.
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
