/// Gemma: Llama with an embedding scaled by sqrt(hidden), norms that scale by 1 + weight, and GeGLU;
/// from Gemma 2 on with norms on both sides of each part and windows in half of the layers or more.
/// Gemma 2 bounds its scores and logits by a tanh.

#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "core/decoder/layer_period.hpp"

#include <megahost/error.hpp>
#include <megahost/nn/decoder.hpp>
#include <megahost/nn/decoder_hugging_face.hpp>
#include <megahost/plugin.hpp>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using mh::Table;
using mh::Value;

constexpr int64_t kPattern = 6; // layers: windows in all but the last of so many

mh::HfKey no_bidirectional_attention() {
  return {.key = "use_bidirectional_attention", .words = {{Value()}, {.theirs = false}}};
}

std::vector<mh::HfKey> gemma_keys(const mh::LlamaDefaults& defaults, const char* activation) {
  auto keys = mh::joined(
      {mh::llama_keys(defaults),
       {{.key = "tie_word_embeddings", .field = "tied", .absent = true},
        mh::only_value("attention_bias", false)}}
  );
  std::erase_if(keys, [](const mh::HfKey& key) { return key.key == "hidden_act"; });
  keys.push_back(
      {.key = activation,
       .field = "activation",
       .absent = "gelu_pytorch_tanh",
       .words = {{"gelu_pytorch_tanh", "geglu_tanh"}}}
  );
  return keys;
}

/// The keys that Gemma 2 and 3 have in common; transformers' defaults of both are one model's sizes.
std::vector<mh::HfKey> gemma2_keys(int64_t vocab, double rope_base, int64_t length) {
  return mh::joined(
      {gemma_keys(
           {.vocab = vocab,
            .hidden = 2304,
            .ffn_hidden = 9216,
            .layers = 26,
            .heads = 8,
            .kv_heads = 4,
            .head_dim = 256,
            .rope_base = rope_base,
            .length = length},
           "hidden_activation"
       ),
       mh::window_keys(),
       {{.key = "query_pre_attn_scalar", .field = "score_dim", .absent = 256}}}
  );
}

/// The rotary positions of layers without a window become those of the model; of layers with one
/// only their base is left, rope_local_base_freq as transformers 4 has it.
void simplify_bases(Table& config) {
  Value both = config.take("rope_parameters");
  Value local = config.take("rope_local_base_freq");
  if (both.is_table()) {
    Table& table = both.as_table();
    const Value window = table.take("sliding_attention"), whole = table.take("full_attention");
    if (window.is_table()) {
      if (const Value* type = window.as_table().find("rope_type");
          type != nullptr && !(*type == Value("default"))) {
        throw mh::Error(
            type->origin.where() + ": rotary positions of sliding_attention are of rope_type " +
                to_text(*type) + ", gemma scales none of these",
            "\"default\"",
            mh::exit_code::data
        );
      }
      if (const Value* base = window.as_table().find("rope_theta")) {
        local = *base;
      }
    }
    config.set("rope_parameters", whole.is_null() ? both : whole);
  }
  config.set("rope_local_base_freq", local.is_null() ? Value(10000) : local);
  mh::simplify_rope(config);
}

/// Without layer_types all layers but the last of `period` have the window.
void simplify_types(Table& config, int64_t period) {
  mh::complete_layer_types(config, [period](int64_t layer) { return (layer + 1) % period != 0; });
  mh::simplify_layer_types(config);
}

void simplify_gemma3(Table& config) {
  simplify_bases(config);
  simplify_types(
      config, mh::taken_period(config, "sliding_window_pattern", "layer_types", kPattern)
  );
  const Value* window = config.find("sliding_window");
  if (window != nullptr && window->is_null()) {
    config.set("rope_local_base_freq", Value()); // no layer has it
  }
}

void restore_gemma3(Table& config) {
  mh::restore_layer_types(config);
  Table both, local;
  local.set("rope_type", "default");
  const Value base = config.take("rope_local_base_freq");
  local.set("rope_theta", base.is_null() ? Value(10000) : base);
  both.set("full_attention", config.take("rope_parameters"));
  both.set("sliding_attention", local);
  config.set("rope_parameters", both);
}

/// A model that sees images, too: what is read of it is its language model.
void simplify_seeing_gemma3(Table& config) {
  const Value text = config.take("text_config");
  if (!text.is_table()) {
    throw mh::Error(
        "config.json: a gemma3 without a text_config, which describes its language model",
        "give the folder as transformers writes it; a language model alone is a gemma3_text",
        mh::exit_code::data
    );
  }
  for (const auto& entry : text.as_table()) {
    if (entry.key != "model_type") {
      config.set(entry.key, entry.value, entry.key_origin);
    }
  }
  simplify_gemma3(config);
}

mh::HfModel gemma3_text() {
  return {
      .model_type = "gemma3_text",
      .architecture = "Gemma3ForCausalLM",
      .keys = mh::joined(
          {gemma2_keys(/*vocab=*/262208, /*rope_base=*/1e6, /*length=*/131072),
           {{.key = "rope_local_base_freq", .field = "window_rope_base"},
            mh::only_value("attn_logit_softcapping", Value()),
            mh::only_value("final_logit_softcapping", Value()),
            mh::only_value("use_bidirectional_attention", false)}}
      ),
      .always = {{"qk_norm", true}, {"norm_placement", "sandwich"}},
      .harmless = {"_sliding_window_pattern", "cache_implementation"},
      .simplify = simplify_gemma3,
      .restore = restore_gemma3};
}

/// Google's Gemma 3 from 4B on.
mh::HfModel seeing_gemma3() {
  mh::HfModel model = gemma3_text();
  model.model_type = "gemma3";
  model.architecture = "Gemma3ForConditionalGeneration";
  for (const char* key :
       {"mm_tokens_per_image", "boi_token_index", "eoi_token_index", "image_token_index"}) {
    model.harmless.emplace_back(key); // but not vision_config: that it is left out is said
  }
  model.simplify = simplify_seeing_gemma3;
  model.restore = [](Table&) {
    throw mh::Error(
        "a gemma3 sees images too, and this is its language model alone",
        "a gemma3_text is that",
        mh::exit_code::data
    );
  };
  return model;
}

std::vector<mh::HfModel> models() {
  return {
      {.model_type = "gemma",
       .architecture = "GemmaForCausalLM",
       .keys = mh::joined(
           {gemma_keys(
                {.vocab = 256000,
                 .hidden = 3072,
                 .ffn_hidden = 24576,
                 .layers = 28,
                 .heads = 16,
                 .kv_heads = 16,
                 .head_dim = 256,
                 .length = 8192},
                "hidden_act"
            ),
            {no_bidirectional_attention()}}
       ),
       .simplify =
           [](Table& config) { // releases say "gelu" and mean the approximation by tanh
             const Value* act = config.find("hidden_act");
             if (act != nullptr && *act == Value("gelu")) {
               config.set("hidden_act", "gelu_pytorch_tanh");
             }
             config.erase("hidden_activation");
             mh::simplify_rope(config);
           }},
      {.model_type = "gemma2",
       .architecture = "Gemma2ForCausalLM",
       .keys = mh::joined(
           {gemma2_keys(/*vocab=*/256000, /*rope_base=*/10000, /*length=*/8192),
            {{.key = "attn_logit_softcapping", .field = "score_cap", .absent = 50.0},
             {.key = "final_logit_softcapping", .field = "logit_cap", .absent = 30.0},
             no_bidirectional_attention()}}
       ),
       .always = {{"norm_placement", "sandwich"}},
       .harmless = {"cache_implementation", "hidden_act"},
       .simplify =
           [](Table& config) {
             mh::simplify_rope(config);
             simplify_types(config, /*period=*/2);
           },
       .restore = mh::restore_layer_types},
      gemma3_text(),
      seeing_gemma3(),
  };
}

class Gemma : public mh::Decoder {
public:
  struct Config : mh::DecoderConfig {
    Config() {
      norm = "rmsnorm_1p";
      norm_eps = 1e-6;
      scaled_embedding = true;
      activation = "geglu_tanh";
      positions = "rope";
      bias = false;
    }
  };

  static void fields(mh::Fields<Config>& f) { mh::decoder_fields(f); }

  static mh::HfMapping hugging_face_config() {
    return {.models = models(), .free = mh::decoder_free(), .plain = mh::decoder_plain};
  }

  Gemma(const Config& config, const Args& args)
      : Decoder(config, args) {}

  /// `transformers` GemmaForCausalLM; where each part has two norms Gemma2ForCausalLM, and
  /// Gemma3ForCausalLM with norms of queries and keys.
  [[nodiscard]] std::vector<mh::HfTensor> hugging_face() const override {
    return mh::llama_names(config());
  }
};

} // namespace

MH_PLUGIN("org.megahost.gemma", "0.1.0", "Gemma decoder models", [](mh::Registry& registry) {
  registry.add<Gemma>(
      "gemma",
      "decoder with a scaled embedding, norms by 1 + weight, GeGLU and grouped-query attention"
  );
});
