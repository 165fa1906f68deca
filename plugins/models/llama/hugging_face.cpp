// How Llama's relatives say the same in config.json.

#include "hugging_face.hpp"

#include "core/decoder/layer_period.hpp"

#include <megahost/error.hpp>
#include <megahost/nn/decoder_hugging_face.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

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

/// Biases of the attention alone, as Qwen3, OLMo 2 and Cohere may have them, llama has not.
mh::HfKey no_attention_bias() {
  return mh::only_value("attention_bias", false);
}

void simplify_qwen(mh::Table& config) {
  mh::simplify_rope(config);
  mh::simplify_windows(config);
}

/// SmolLM3's list of layers: 1 rotates, 0 knows no positions. Other models' lists are made of what
/// they say of windows.
constexpr auto kRotates = "no_rope_layers";

mh::HfKey rotates_key() {
  return {.key = kRotates, .field = "rope_pattern", .words = {{1, "rope"}, {0, "none"}}};
}

/// No list where all layers rotate. `given`: the key that says which do.
void set_rotates(mh::Table& config, mh::Value::Array layers, const mh::Value& given) {
  const auto rotating = std::count(layers.begin(), layers.end(), mh::Value(1));
  if (rotating == 0) {
    throw mh::Error(
        given.origin.where() +
            ": no layer rotates its queries and keys, so that no token knows its "
            "position",
        "give the folder as transformers writes it",
        mh::exit_code::data
    );
  }
  const bool all = rotating == static_cast<std::ptrdiff_t>(layers.size());
  mh::Value value = all ? mh::Value() : mh::Value(std::move(layers));
  value.origin = given.origin;
  config.set(kRotates, value);
}

/// Layers without a window do not rotate. If layer_types is absent, that is the last of each
/// sliding_window_pattern layers.
void simplify_windows_that_rotate(mh::Table& config) {
  const int64_t period = mh::taken_period(config, "sliding_window_pattern", "layer_types", 4);
  mh::complete_layer_types(config, [period](int64_t layer) { return (layer + 1) % period != 0; });
  mh::Value::Array rotates;
  const mh::Value types = *config.find("layer_types");
  for (const mh::Value& type : types.as_array()) {
    rotates.emplace_back(type == mh::Value("sliding_attention") ? 1 : 0);
  }
  set_rotates(config, std::move(rotates), types);
  mh::simplify_layer_types(config);
}

/// A file says by layer_types alone which layers rotate.
void restore_windows_that_rotate(mh::Table& config) {
  config.erase(kRotates);
  mh::restore_layer_types(config);
}

/// The fields of use_qk_norm: it is a layer norm of each head, by weights of its own.
constexpr std::pair<const char*, const char*> kCohereNorm[] = {
    {"qk_norm_over", "own_head"}, {"qk_norm_kind", "layernorm_no_bias"}};

void simplify_cohere(mh::Table& config) {
  mh::simplify_rope(config);
  const mh::Value given = *config.find("use_qk_norm");
  for (const auto& [field, meaning] : kCohereNorm) {
    mh::Value value = given == mh::Value(true) ? mh::Value(meaning) : mh::Value();
    value.origin = given.origin;
    config.set(field, value);
  }
}

void restore_cohere(mh::Table& config) {
  for (const auto& [field, meaning] : kCohereNorm) {
    config.erase(field);
  }
}

void simplify_cohere2(mh::Table& config) {
  mh::simplify_rope(config);
  config.erase("head_dim"); // transformers takes hidden_size / num_attention_heads
  simplify_windows_that_rotate(config);
}

/// Keys of transformers' Cohere and Cohere2, which differ in the base of the positions.
std::vector<mh::HfKey> cohere_keys(double rope_base) {
  auto keys = mh::joined(
      {mh::llama_keys(
           {.vocab = 256000,
            .hidden = 8192,
            .ffn_hidden = 22528,
            .layers = 40,
            .heads = 64,
            .rope_base = rope_base,
            .length = 8192}
       ),
       {{.key = "tie_word_embeddings", .field = "tied", .absent = true},
        {.key = "logit_scale", .field = "logit_scale", .absent = 0.0625},
        no_attention_bias()}}
  );
  std::erase_if(keys, [](const mh::HfKey& key) { return key.key == "rms_norm_eps"; });
  keys.push_back({.key = "layer_norm_eps", .field = "norm_eps", .absent = 1e-5});
  return keys;
}

mh::Table always_of_cohere() {
  return {
      {"norm", "layernorm_no_bias"},
      {"parallel_residual", true},
      {"shared_norm", true},
      {"rope_pairs", "adjacent"}};
}

/// transformers' Cohere: Command-R, and R+, whose queries and keys have norms.
mh::HfModel cohere() {
  std::vector<mh::HfKey> norms{{.key = "use_qk_norm", .field = "qk_norm", .absent = false}};
  for (const auto& [field, meaning] : kCohereNorm) {
    norms.push_back({.key = field, .field = field});
  }
  return {
      .model_type = "cohere",
      .architecture = "CohereForCausalLM",
      .keys = mh::joined({cohere_keys(500000), norms}),
      .always = always_of_cohere(),
      .harmless = {"model_max_length"},
      .simplify = simplify_cohere,
      .restore = restore_cohere};
}

/// transformers' Cohere2: Command R7B and A.
mh::HfModel cohere2() {
  auto keys = mh::joined(
      {cohere_keys(10000), mh::window_keys(), {rotates_key(), mh::only_value("use_qk_norm", false)}}
  );
  std::erase_if(keys, [](const mh::HfKey& key) { return key.key == "head_dim"; });
  return {
      .model_type = "cohere2",
      .architecture = "Cohere2ForCausalLM",
      .keys = std::move(keys),
      .always = always_of_cohere(),
      .harmless =
          {"cache_implementation",
           "layer_switch",
           "model_max_length",
           "order_of_interleaved_layers",
           "position_embedding_type",
           "rotary_pct",
           "use_embedding_sharing",
           "use_gated_activation",
           "use_parallel_block",
           "use_parallel_embedding"},
      .simplify = simplify_cohere2,
      .restore = restore_windows_that_rotate};
}

/// Where no layer has a window, all rotate.
void simplify_exaone4(mh::Table& config) {
  mh::simplify_rope(config);
  if (config.find("sliding_window")->is_null()) {
    config.erase("layer_types");
    config.erase("sliding_window_pattern");
    return;
  }
  simplify_windows_that_rotate(config);
}

mh::HfModel exaone4() {
  return {
      .model_type = "exaone4",
      .architecture = "Exaone4ForCausalLM",
      .keys = mh::joined(
          {mh::llama_keys(
               {.vocab = 102400,
                .hidden = 4096,
                .ffn_hidden = 16384,
                .layers = 32,
                .heads = 32,
                .kv_heads = 32,
                .norm_eps = 1e-5,
                .length = 2048}
           ),
           mh::window_keys(),
           {rotates_key()}}
      ),
      .always = {{"qk_norm", true}, {"norm_placement", "branch"}},
      .simplify = simplify_exaone4,
      .restore = restore_windows_that_rotate}; // transformers cannot derive them without a window
}

/// Every `no_rope_layer_interval`th layer does not rotate where no list says it, and it has the
/// window, where there is one.
void simplify_smollm3(mh::Table& config) {
  simplify_llama(config);
  const int64_t period = mh::taken_period(config, "no_rope_layer_interval", kRotates, 4);
  if (mh::is_absent(config, kRotates)) {
    mh::Value::Array made;
    for (int64_t i = 1; i <= config.find("num_hidden_layers")->as_integer(); ++i) {
      made.emplace_back(i % period != 0 ? 1 : 0);
    }
    config.set(kRotates, std::move(made));
  }
  const mh::Value rotates = *config.find(kRotates);
  const mh::Value use = config.take("use_sliding_window");
  if (use.is_null() || !use.as_boolean()) {
    config.erase("layer_types");
    config.set("sliding_window", mh::Value());
  } else {
    const mh::Value::Array& layers = rotates.as_array();
    mh::complete_layer_types(config, [&layers](int64_t layer) {
      const auto i = static_cast<size_t>(layer);
      return i < layers.size() && !(layers[i] == mh::Value(1));
    });
    mh::simplify_layer_types(config);
  }
  set_rotates(config, rotates.as_array(), rotates);
}

void restore_smollm3(mh::Table& config) {
  if (mh::is_absent(config, kRotates)) {
    const auto layers = static_cast<size_t>(config.find("num_hidden_layers")->as_integer());
    config.set(kRotates, mh::Value::Array(layers, mh::Value(1)));
  }
  config.set("use_sliding_window", !mh::is_absent(config, "sliding_window"));
  mh::restore_layer_types(config);
}

mh::HfModel smollm3() {
  auto keys = mh::joined(
      {mh::llama_keys(
           {.vocab = 128256,
            .hidden = 2048,
            .ffn_hidden = 11008,
            .layers = 36,
            .heads = 16,
            .kv_heads = 4,
            .rope_base = 2000000,
            .length = 32768}
       ),
       bias_keys(),
       mh::window_keys(),
       {rotates_key(),
        {.key = "sliding_window", .field = "window"},
        {.key = "tie_word_embeddings", .field = "tied", .absent = true}}}
  );
  return {
      .model_type = "smollm3",
      .architecture = "SmolLM3ForCausalLM",
      .keys = std::move(keys),
      .harmless = {"max_window_layers"},
      .simplify = simplify_smollm3,
      .restore = restore_smollm3};
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
      exaone4(),
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
      cohere2(),
      smollm3(),
  };
}

} // namespace

mh::HfMapping llama_hugging_face() {
  return {.models = models(), .free = mh::decoder_free(), .plain = mh::decoder_plain};
}
