#include "hugging_face.hpp"

#include <megahost/error.hpp>
#include <megahost/nn/decoder_hugging_face.hpp>
#include <megahost/nn/mixture_config.hpp>

#include <algorithm>
#include <iterator>

namespace {

using mh::HfKey;
using mh::Table;
using mh::Value;

int64_t integer(const Table& table, const char* key, int64_t otherwise) {
  return mh::is_absent(table, key) ? otherwise : table.find(key)->as_integer();
}

/// Qwen's dense layers: those of `mlp_only_layers`, and those whose number, from 1, is no multiple
/// of `decoder_sparse_step`. They become a word a layer; none if all layers have experts.
void simplify_dense_layers(Table& config) {
  const Value dense = *config.find("mlp_only_layers");
  const int64_t step = integer(config, "decoder_sparse_step", 1);
  config.erase("decoder_sparse_step");
  Value::Array words;
  bool all = true;
  for (int64_t i = 0; i < config.find("num_hidden_layers")->as_integer(); ++i) {
    const bool listed = !dense.is_null() &&
                        std::count(dense.as_array().begin(), dense.as_array().end(), Value(i)) > 0;
    const bool experts = !listed && step > 0 && (i + 1) % step == 0;
    words.emplace_back(experts ? "moe" : "dense");
    all = all && experts;
  }
  Value pattern = all ? Value() : Value(std::move(words));
  pattern.origin = dense.origin;
  config.set("mlp_only_layers", pattern);
}

void restore_dense_layers(Table& config) {
  Value::Array dense;
  if (!mh::is_absent(config, "mlp_only_layers")) {
    const auto& words = config.find("mlp_only_layers")->as_array();
    const int64_t layers = integer(config, "num_hidden_layers", 0);
    for (int64_t i = 0; i < layers && !words.empty(); ++i) {
      if (words[static_cast<size_t>(i) % words.size()] == Value("dense")) {
        dense.emplace_back(i);
      }
    }
  }
  config.set("mlp_only_layers", dense);
  config.set("decoder_sparse_step", 1);
}

void simplify_qwen3(Table& config) {
  mh::simplify_rope(config);
  simplify_dense_layers(config);
  if (mh::is_absent(config, "use_sliding_window") ||
      !config.find("use_sliding_window")->as_boolean()) {
    config.set("sliding_window", Value());
  }
  config.erase("use_sliding_window");
}

void restore_qwen3(Table& config) {
  restore_dense_layers(config);
  config.set("use_sliding_window", !mh::is_absent(config, "sliding_window"));
}

void simplify_qwen2(Table& config) {
  mh::simplify_rope(config);
  simplify_dense_layers(config);
  mh::simplify_windows(config, /*alternate=*/true);
}

void restore_qwen2(Table& config) {
  restore_dense_layers(config);
  mh::restore_windows(config);
  if (!mh::is_absent(config, "sliding_window") && config.find("layer_types") == nullptr) {
    const auto layers = static_cast<size_t>(integer(config, "num_hidden_layers", 0));
    config.set("layer_types", Value::Array(layers, "sliding_attention"));
  }
}

/// The shared experts are one feed-forward of all their units.
/// transformers rates a group of experts by its best two, megahost by as many as are chosen in each.
void require_two_of_a_group(const Table& config) {
  const int64_t chosen = integer(config, "topk_group", 1);
  const int64_t experts = integer(config, "num_experts_per_tok", 1);
  if (integer(config, "n_group", 1) > 1 && chosen > 0 && experts / chosen != 2) {
    throw mh::Error(
        config.find("num_experts_per_tok")->origin.where() + ": num_experts_per_tok is " +
            std::to_string(experts) + " and topk_group " + std::to_string(chosen) +
            ", and only twice as many experts as groups are supported where n_group is above 1",
        "a model of DeepSeek-V3 has 8 of 4; with another ratio the groups would be chosen by other "
        "sums of scores than transformers takes",
        mh::exit_code::data
    );
  }
}

void simplify_deepseek(Table& config) {
  mh::simplify_rope(config, /*latent=*/true);
  require_two_of_a_group(config);
  Value& shared = *config.find("n_shared_experts");
  const int64_t units =
      integer(config, "n_shared_experts", 0) * config.find("moe_intermediate_size")->as_integer();
  const mh::Origin origin = shared.origin;
  shared = units > 0 ? Value(units) : Value();
  shared.origin = origin;
}

void restore_deepseek(Table& config) {
  const Value* units = config.find("n_shared_experts");
  const int64_t each = integer(config, "moe_intermediate_size", 0);
  if (!mh::is_absent(config, "n_shared_experts")) {
    if (each <= 0 || units->as_integer() % each != 0) {
      throw mh::Error(
          "model.shared_hidden is " + to_text(*units) + ", which is no multiple of expert_hidden " +
              std::to_string(each),
          "DeepSeek-V3 has a number of shared experts of that size"
      );
    }
    config.set("n_shared_experts", units->as_integer() / each);
  } else {
    config.set("n_shared_experts", 0);
  }
}

/// Without a scaling transformers takes the published one, without layer_types every second layer
/// from the first on has the window.
void simplify_gpt_oss(Table& config) {
  if (!mh::is_absent(config, "quantization_config")) {
    const Value& stored = *config.find("quantization_config");
    const Value* method = stored.find("quant_method");
    if (method == nullptr || !(*method == Value("mxfp4"))) {
      throw mh::Error(
          stored.origin.where() + ": the weights are quantized, and not as MXFP4",
          "give a folder with float weights, or with those of MXFP4",
          mh::exit_code::data
      );
    }
  }
  if (mh::is_absent(config, "rope_scaling") && mh::is_absent(config, "rope_parameters")) {
    config.set(
        "rope_parameters",
        Table{
            {"rope_type", "yarn"},
            {"factor", 32.0},
            {"beta_fast", 32.0},
            {"beta_slow", 1.0},
            {"truncate", false},
            {"original_max_position_embeddings", 4096}}
    );
  }
  mh::simplify_rope(config);
  mh::complete_layer_types(config, [](int64_t layer) { return layer % 2 == 0; });
  mh::simplify_layer_types(config);
}

mh::HfModel mixtral() {
  return {
      .model_type = "mixtral",
      .architecture = "MixtralForCausalLM",
      .keys = mh::joined(
          {mh::llama_keys(
               {.vocab = 32000,
                .hidden = 4096,
                .ffn_hidden = 14336,
                .layers = 32,
                .heads = 32,
                .kv_heads = 8,
                .norm_eps = 1e-5,
                .rope_base = 1e6,
                .length = 131072}
           ),
           {{.key = "num_local_experts",
             .field = "experts",
             .absent = 8,
             .aliases = {"num_experts"}},
            {.key = "num_experts_per_tok", .field = "experts_per_token", .absent = 2},
            {.key = "sliding_window", .field = "window"}}}
      ),
      .always = {{"router", "topk_softmax"}},
      .harmless = {"output_router_logits", "router_aux_loss_coef", "router_jitter_noise"},
      .simplify = [](Table& config) { mh::simplify_rope(config); }};
}

/// Keys of Qwen's mixtures, which differ in their defaults.
std::vector<HfKey> qwen_experts(int64_t experts, int64_t per_token, int64_t units) {
  return {
      {.key = "num_experts",
       .field = "experts",
       .absent = experts,
       .aliases = {"num_local_experts"}},
      {.key = "num_experts_per_tok", .field = "experts_per_token", .absent = per_token},
      {.key = "moe_intermediate_size", .field = "expert_hidden", .absent = units},
      {.key = "norm_topk_prob", .field = "router_normalise", .absent = false},
      {.key = "mlp_only_layers", .field = "moe_pattern"},
  };
}

mh::HfModel qwen3() {
  return {
      .model_type = "qwen3_moe",
      .architecture = "Qwen3MoeForCausalLM",
      .keys = mh::joined(
          {mh::llama_keys(
               {.vocab = 151936,
                .hidden = 2048,
                .ffn_hidden = 6144,
                .layers = 24,
                .heads = 32,
                .kv_heads = 4,
                .length = 32768}
           ),
           qwen_experts(/*experts=*/128, /*per_token=*/8, /*units=*/768),
           {{.key = "sliding_window", .field = "window", .absent = 4096},
            mh::only_value("attention_bias", false)}}
      ),
      .always = {{"router", "softmax_topk"}, {"qk_norm", true}},
      .harmless = {"output_router_logits", "router_aux_loss_coef", "max_window_layers"},
      .simplify = simplify_qwen3,
      .restore = restore_qwen3};
}

mh::HfModel qwen2() {
  return {
      .model_type = "qwen2_moe",
      .architecture = "Qwen2MoeForCausalLM",
      .keys = mh::joined(
          {mh::llama_keys(
               {.vocab = 151936,
                .hidden = 2048,
                .ffn_hidden = 5632,
                .layers = 24,
                .heads = 16,
                .kv_heads = 16,
                .length = 32768}
           ),
           qwen_experts(/*experts=*/60, /*per_token=*/4, /*units=*/1408),
           mh::window_keys(),
           {{.key = "shared_expert_intermediate_size", .field = "shared_hidden", .absent = 5632},
            {.key = "qkv_bias", .field = "qkv_bias", .absent = true}}}
      ),
      .always = {{"router", "softmax_topk"}, {"shared_gate", true}},
      .harmless = {"output_router_logits", "router_aux_loss_coef"},
      .simplify = simplify_qwen2,
      .restore = restore_qwen2};
}

/// Its `head_dim` is that of what is rotated; a recipe asks for multi-token prediction, or does without.
mh::HfModel deepseek() {
  auto keys = mh::llama_keys(
      {.vocab = 129280,
       .hidden = 7168,
       .ffn_hidden = 18432,
       .layers = 61,
       .heads = 128,
       .kv_heads = 128,
       .length = 4096}
  );
  std::erase_if(keys, [](const HfKey& key) { return key.key == "head_dim"; });
  return {
      .model_type = "deepseek_v3",
      .architecture = "DeepseekV3ForCausalLM",
      .keys = mh::joined(
          {keys,
           {{.key = "kv_lora_rank", .field = "kv_rank", .absent = 512},
            {.key = "q_lora_rank", .field = "q_rank", .absent = 1536},
            {.key = "qk_nope_head_dim", .field = "head_dim", .absent = 128},
            {.key = "qk_rope_head_dim", .field = "rope_head_dim", .absent = 64},
            {.key = "v_head_dim", .field = "v_head_dim", .absent = 128},
            {.key = "rope_parameters.mscale", .field = "rope_mscale"},
            {.key = "rope_parameters.mscale_all_dim", .field = "rope_mscale_all_dim"},
            {.key = "n_routed_experts",
             .field = "experts",
             .absent = 256,
             .aliases = {"num_local_experts"}},
            {.key = "num_experts_per_tok", .field = "experts_per_token", .absent = 8},
            {.key = "moe_intermediate_size", .field = "expert_hidden", .absent = 2048},
            {.key = "n_shared_experts", .field = "shared_hidden", .absent = 1},
            {.key = "first_k_dense_replace", .field = "first_dense", .absent = 3},
            {.key = "n_group", .field = "router_groups", .absent = 8},
            {.key = "topk_group", .field = "router_groups_chosen", .absent = 4},
            {.key = "norm_topk_prob", .field = "router_normalise", .absent = true},
            {.key = "routed_scaling_factor", .field = "router_scale", .absent = 2.5},
            {.key = "num_nextn_predict_layers",
             .field = "mtp_layers",
             .absent = 0,
             .aliases = {"num_mtp_layers"},
             .read = false},
            mh::only_value("attention_bias", false),
            mh::only_value("rope_interleave", true),
            mh::only_value("scoring_func", "sigmoid"),
            mh::only_value("topk_method", "noaux_tc"),
            mh::only_value("moe_layer_freq", 1)}}
      ),
      .always = {{"router", "sigmoid"}, {"balance", Value::Array{"bias"}}},
      .harmless =
          {"aux_loss_alpha",
           "ep_size",
           "head_dim",
           "output_router_logits",
           "qk_head_dim",
           "seq_aux"},
      .simplify = simplify_deepseek,
      .restore = restore_deepseek};
}

/// Its biases of attention are those of all linear layers; experts and routers have theirs always.
mh::HfModel gpt_oss() {
  return {
      .model_type = "gpt_oss",
      .architecture = "GptOssForCausalLM",
      .keys = mh::joined(
          {mh::llama_keys(
               {.vocab = 201088,
                .hidden = 2880,
                .ffn_hidden = 2880,
                .layers = 36,
                .heads = 64,
                .kv_heads = 8,
                .head_dim = 64,
                .norm_eps = 1e-5,
                .rope_base = 150000,
                .length = 131072}
           ),
           mh::window_keys(),
           {{.key = "hidden_act",
             .field = "activation",
             .absent = "silu",
             .words = {{"silu", "swiglu_clamped"}}},
            {.key = "sliding_window", .field = "window", .absent = 128},
            {.key = "num_local_experts",
             .field = "experts",
             .absent = 128,
             .aliases = {"num_experts"}},
            {.key = "num_experts_per_tok",
             .field = "experts_per_token",
             .absent = 4,
             .aliases = {"experts_per_token"}},
            mh::only_value("attention_bias", true),
            mh::only_value("swiglu_alpha", 1.702),
            mh::only_value("swiglu_limit", 7.0)}}
      ),
      .always = {{"router", "topk_softmax"}, {"sinks", true}, {"bias", true}},
      .harmless =
          {"initial_context_length",
           "output_router_logits",
           "quantization_config",
           "router_aux_loss_coef"},
      .simplify = simplify_gpt_oss,
      .restore = mh::restore_layer_types};
}

/// Layers with experts as `first_dense` or as a word a layer, and no sizes of what no layer has.
void plain(Table& f) {
  mh::decoder_plain(f);
  mh::mixture_plain(f);
  const int64_t first = integer(f, "first_dense", 0), every = integer(f, "moe_every", 1);
  const Value pattern = *f.find("moe_pattern");
  const auto& words = pattern.as_array();
  Value::Array layers;
  bool dense = false;
  for (int64_t i = 0; i < f.find("layers")->as_integer(); ++i) {
    const bool experts =
        i >= first &&
        (words.empty() ? i % every == 0
                       : words[static_cast<size_t>(i) % words.size()] == Value("moe"));
    layers.emplace_back(experts ? "moe" : "dense");
    dense = dense || !experts;
  }
  Value made(std::move(layers));
  made.origin = pattern.origin;
  f.set("moe_pattern", made);
  f.erase("first_dense");
  f.erase("moe_every");
  if (!dense) {
    f.erase("ffn_hidden");
  }
}

} // namespace

mh::HfMapping moe_hugging_face() {
  std::vector<std::string> free = mh::decoder_free();
  std::ranges::move(mh::mixture_free(), std::back_inserter(free));
  return {
      .models = {mixtral(), qwen3(), qwen2(), deepseek(), gpt_oss()},
      .free = std::move(free),
      .plain = plain};
}
