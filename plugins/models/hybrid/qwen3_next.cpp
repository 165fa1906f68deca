#include "qwen3_next.hpp"

#include <megahost/error.hpp>
#include <megahost/nn/feed_forward.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace mh::hybrid {

namespace {

/// A layer of Qwen3Next is two of ours, one of gated DeltaNet and a feed-forward. Its layers of
/// attention have a gate on what attention gives, and most of its feed-forwards are mixtures.
void simplify_qwen3_next(Table& config) {
  const Value& named = *config.find("model_type");
  const Value* layers = config.find("layer_types");
  const auto is_linear = [](const Value& word) { return word == Value("linear_attention"); };
  if (layers == nullptr || !layers->is_array() ||
      !std::all_of(layers->as_array().begin(), layers->as_array().end(), is_linear)) {
    refuse(layers == nullptr ? named : *layers, "some layers are attention with a gate");
  }
  const Value* experts = config.find("num_experts");
  if (experts == nullptr || *experts != Value(0)) {
    refuse(experts == nullptr ? named : *experts, "feed-forwards are mixtures of experts");
  }
  Value count(2 * static_cast<int64_t>(layers->as_array().size()));
  count.origin = layers->origin;
  config.erase("layer_types");
  config.erase("num_experts");
  config.set("num_hidden_layers", count);
}

void restore_qwen3_next(Table& config) {
  const int64_t layers = config.find("num_hidden_layers")->as_integer();
  if (layers % 2 != 0) {
    throw Error(
        "layers = " + std::to_string(layers) + " are not pairs",
        "a layer of transformers' Qwen3Next is gated DeltaNet and a feed-forward"
    );
  }
  Value::Array types(static_cast<size_t>(layers / 2), Value("linear_attention"));
  config.set("layer_types", std::move(types));
  config.set("num_hidden_layers", layers / 2);
  config.set("num_experts", 0);
}

} // namespace

HfModel qwen3_next() {
  return {
      .model_type = "qwen3_next",
      .architecture = "Qwen3NextForCausalLM",
      .keys =
          {{.key = "vocab_size", .field = "vocab", .absent = 151936},
           {.key = "hidden_size", .field = "hidden", .absent = 2048},
           {.key = "num_hidden_layers", .field = "layers", .absent = 96},
           {.key = "intermediate_size", .field = "ffn_hidden", .absent = 5632},
           {.key = "hidden_act",
            .field = "activation",
            .absent = "silu",
            .words = {{"silu", "swiglu"}}},
           {.key = "rms_norm_eps", .field = "norm_eps", .absent = 1e-6},
           {.key = "linear_num_key_heads", .field = "delta_key_heads", .absent = 16},
           {.key = "linear_num_value_heads", .field = "delta_heads", .absent = 32},
           {.key = "linear_key_head_dim", .field = "delta_key_dim", .absent = 128},
           {.key = "linear_value_head_dim", .field = "delta_dim", .absent = 128},
           {.key = "linear_conv_kernel_dim", .field = "delta_taps", .absent = 4},
           {.key = "tie_word_embeddings", .field = "tied", .absent = false},
           {.key = "max_position_embeddings",
            .field = "seq_length",
            .absent = 32768,
            .compared = false}},
      .always =
          {{"pattern", std::string{kDelta, kMlp}},
           {"norm", "rmsnorm_1p"},
           {"bias", false},
           {"heads", 1}},
      .harmless = // keys of attention and of experts, which no layer has
      {"attention_bias",
       "attention_dropout",
       "decoder_sparse_step",
       "full_attention_interval",
       "head_dim",
       "mlp_only_layers",
       "moe_intermediate_size",
       "norm_topk_prob",
       "num_attention_heads",
       "num_experts_per_tok",
       "num_key_value_heads",
       "output_router_logits",
       "partial_rotary_factor",
       "rope_parameters",
       "rope_scaling",
       "rope_theta",
       "router_aux_loss_coef",
       "shared_expert_intermediate_size"},
      .simplify = simplify_qwen3_next,
      .restore = restore_qwen3_next};
}

std::vector<HfTensor> qwen3_next_names(const HybridConfig& c, const std::string& all) {
  if (c.norm != "rmsnorm_1p" || c.bias || activation_kind(c.activation) != ActivationKind::swiglu ||
      c.layers % 2 != 0) {
    return {};
  }
  std::vector<HfTensor> map{
      {"model.embed_tokens.weight", {"embedding.word.weight"}},
      {"model.norm.weight", {"head.norm.weight"}}};
  if (!c.tied) {
    map.push_back({"lm_head.weight", {"head.weight"}});
  }
  for (int64_t i = 0; i < c.layers; i += 2) {
    if (all[static_cast<size_t>(i)] != kDelta || all[static_cast<size_t>(i) + 1] != kMlp) {
      return {};
    }
    const std::string theirs = "model.layers." + std::to_string(i / 2) + ".";
    const std::string mixer = "layers." + std::to_string(i) + ".";
    const std::string mlp = "layers." + std::to_string(i + 1) + ".";
    const auto delta = [&](const char* name) { return mixer + "delta." + name; };
    const auto add = [&](const std::string& name, std::vector<std::string> ours, int64_t groups) {
      map.push_back({.theirs = theirs + name, .ours = std::move(ours), .groups = groups});
    };
    add("input_layernorm.weight", {mixer + "norm.weight"}, 1);
    add("linear_attn.in_proj_qkvz.weight",
        {delta("q.weight"), delta("k.weight"), delta("v.weight"), delta("z.weight")},
        c.delta_key_heads);
    add("linear_attn.in_proj_ba.weight",
        {delta("beta.weight"), delta("dt.weight")},
        c.delta_key_heads);
    add("linear_attn.conv1d.weight",
        {delta("convolution.q.weight"),
         delta("convolution.k.weight"),
         delta("convolution.v.weight")},
        1);
    add("linear_attn.dt_bias", {delta("dt_bias")}, 1);
    add("linear_attn.A_log", {delta("a_log")}, 1);
    add("linear_attn.norm.weight", {delta("norm.weight")}, 1);
    add("linear_attn.out_proj.weight", {delta("out.weight")}, 1);
    add("post_attention_layernorm.weight", {mlp + "norm.weight"}, 1);
    add("mlp.gate_proj.weight", {mlp + "mlp.gate.weight"}, 1);
    add("mlp.up_proj.weight", {mlp + "mlp.up.weight"}, 1);
    add("mlp.down_proj.weight", {mlp + "mlp.down.weight"}, 1);
  }
  return map;
}

} // namespace mh::hybrid
