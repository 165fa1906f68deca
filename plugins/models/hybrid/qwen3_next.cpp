#include "qwen3_next.hpp"

#include "core/decoder/layer_period.hpp"

#include <megahost/error.hpp>
#include <megahost/nn/decoder_hugging_face.hpp>
#include <megahost/nn/feed_forward.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

namespace mh::hybrid {

namespace {

/// A layer of Qwen3Next is two of ours: a mixer, and a feed-forward or a mixture of experts.
constexpr std::array<std::pair<const char*, char>, 2> kMixers{{
    {"linear_attention", kDelta},
    {"full_attention", kAttention},
}};

int64_t number(const Table& config, const char* key, int64_t otherwise) {
  const Value* value = config.find(key);
  return value != nullptr && value->is_integer() ? value->as_integer() : otherwise;
}

char mixer_of(const Value& word) {
  for (const auto& [theirs, letter] : kMixers) {
    if (word == Value(theirs)) {
      return letter;
    }
  }
  refuse(word, "a layer is " + to_text(word));
}

/// Without a list every `full_attention_interval`-th layer is attention.
std::string mixers(Table& config) {
  const int64_t interval = taken_period(config, "full_attention_interval", "layer_types", 4);
  std::string all;
  const Value* words = config.find("layer_types");
  if (words != nullptr && words->is_array()) {
    for (const Value& word : words->as_array()) {
      all += mixer_of(word);
    }
    return all;
  }
  for (int64_t i = 1; i <= number(config, "num_hidden_layers", 48); ++i) {
    all += i % interval == 0 ? kAttention : kDelta;
  }
  return all;
}

/// Dense are the layers that `mlp_only_layers` lists, and those whose number, from 1, is no multiple
/// of `decoder_sparse_step`.
bool is_dense(const Table& config, int64_t layer) {
  const Value* listed = config.find("mlp_only_layers");
  const int64_t step = number(config, "decoder_sparse_step", 1);
  return number(config, "num_experts", 512) == 0 || step <= 0 || (layer + 1) % step != 0 ||
         (listed != nullptr && listed->is_array() &&
          std::ranges::count(listed->as_array(), Value(layer)) > 0);
}

void simplify_qwen3_next(Table& config) {
  simplify_rope(config);
  std::string pattern;
  for (const char mixer : mixers(config)) {
    pattern += mixer;
    pattern += is_dense(config, static_cast<int64_t>(pattern.size()) / 2) ? kMlp : kMixture;
  }
  const Value* said = config.find("layer_types");
  Value letters(pattern), layers(static_cast<int64_t>(pattern.size()));
  letters.origin = layers.origin = said == nullptr ? Origin() : said->origin;
  config.set("layer_types", letters);
  config.set("num_hidden_layers", layers);
  for (const char* read : {"mlp_only_layers", "decoder_sparse_step"}) {
    config.erase(read);
  }
  if (pattern.find(kMixture) == std::string::npos) {
    config.set("num_experts", 0);
  }
}

void restore_qwen3_next(Table& config) {
  const std::string letters = config.find("layer_types")->as_string();
  const int64_t layers = number(config, "num_hidden_layers", 0);
  Value::Array types, dense;
  const auto letter = [&letters](int64_t layer) {
    return letters[static_cast<size_t>(layer) % letters.size()];
  };
  for (int64_t i = 0; i + 1 < layers; i += 2) {
    const char mixer = letter(i), second = letter(i + 1);
    const auto* word =
        std::ranges::find(kMixers, mixer, [](const auto& one) { return one.second; });
    if (word == kMixers.end() || (second != kMlp && second != kMixture)) {
      throw Error(
          std::string("layers ") + std::to_string(i) + " and " + std::to_string(i + 1) + " are " +
              mixer + second,
          "a layer of transformers' Qwen3Next is G or *, then - or E"
      );
    }
    types.emplace_back(word->first);
    if (second == kMlp) {
      dense.emplace_back(i / 2);
    }
  }
  if (layers % 2 != 0) {
    throw Error(
        "layers = " + std::to_string(layers) + " are not pairs",
        "a layer of transformers' Qwen3Next is a mixer and what follows it"
    );
  }
  config.set("layer_types", std::move(types));
  config.set("num_hidden_layers", layers / 2);
  config.set("mlp_only_layers", std::move(dense));
  config.set("decoder_sparse_step", 1);
  const char* shared = "shared_expert_intermediate_size";
  if (const Value* size = config.find(shared); size != nullptr && size->is_null()) {
    config.erase(shared); // without mixtures; transformers' Qwen3Next has a shared expert in each
  }
}

/// Adds the names of what follows a mixer.
void add_second(
    std::vector<HfTensor>& map,
    const HybridConfig& c,
    char kind,
    const std::string& theirs,
    const std::string& ours
) {
  if (kind == kMlp) {
    add_feed_forward_names(c, theirs, ours, map);
    return;
  }
  add_expert_names(c, /*gated=*/true, theirs, ours, map);
  add_feed_forward_names(c, theirs + "shared_expert.", ours + "shared.", map);
  map.push_back({theirs + "shared_expert_gate.weight", {ours + "shared_gate.weight"}});
}

/// Adds the names of a mixer; `theirs` is the name of their layer.
void add_mixer(
    std::vector<HfTensor>& map,
    const HybridConfig& c,
    char kind,
    const std::string& theirs,
    const std::string& ours
) {
  using Names = std::vector<std::string_view>;
  const std::string part = kind == kDelta ? "delta." : "attention.";
  const std::string folder = theirs + (kind == kDelta ? "linear_attn." : "self_attn.");
  const auto add = [&](const char* name, const Names& pieces, int64_t groups = 1) {
    HfTensor tensor{.theirs = folder + name, .ours = {}, .groups = groups};
    for (const std::string_view piece : pieces) {
      tensor.ours.push_back(ours + part + std::string(piece));
    }
    map.push_back(std::move(tensor));
  };
  if (kind == kAttention) {
    add("q_proj.weight", {"q.weight", "gate.weight"}, c.heads); // each head's query, then its gate
    for (const char* name : {"k", "v"}) {
      const std::string weight = std::string(name) + ".weight";
      map.push_back({folder + name + "_proj.weight", {ours + part + weight}});
    }
    add("o_proj.weight", {"out.weight"});
    add("q_norm.weight", {"q_norm.weight"});
    add("k_norm.weight", {"k_norm.weight"});
    return;
  }
  add("in_proj_qkvz.weight", {"q.weight", "k.weight", "v.weight", "z.weight"}, c.delta_key_heads);
  add("in_proj_ba.weight", {"beta.weight", "dt.weight"}, c.delta_key_heads);
  add("conv1d.weight", {"convolution.q.weight", "convolution.k.weight", "convolution.v.weight"});
  add("dt_bias", {"dt_bias"});
  add("A_log", {"a_log"});
  add("norm.weight", {"norm.weight"});
  add("out_proj.weight", {"out.weight"});
}

/// Whether transformers' Qwen3Next can say it; `all` has a letter for each layer.
bool has_names(const HybridConfig& c, const std::string& all) {
  const bool attends = all.find(kAttention) != std::string::npos;
  const bool mixes = all.find(kMixture) != std::string::npos;
  return c.norm == "rmsnorm_1p" && !c.bias && c.layers % 2 == 0 &&
         activation_kind(c.activation) == ActivationKind::swiglu &&
         (!attends ||
          (c.attention_gate && c.qk_norm && c.qk_norm_over == "head" && !c.qk_norm_kind &&
           !*c.qkv_bias && c.positions == "rope" && c.rope_pairs == "halves")) &&
         (!mixes ||
          (c.router == "softmax_topk" && c.shared_gate && !c.has_bias() && !c.expert_latent));
}

} // namespace

HfModel qwen3_next() {
  return {
      .model_type = "qwen3_next",
      .architecture = "Qwen3NextForCausalLM",
      .keys = joined(
          {llama_keys(
               {.vocab = 151936,
                .hidden = 2048,
                .ffn_hidden = 5632,
                .layers = 48,
                .heads = 16,
                .kv_heads = 2,
                .head_dim = 256,
                .length = 32768}
           ),
           {{.key = "layer_types", .field = "pattern"},
            {.key = "rope_parameters.partial_rotary_factor", .field = "rope_share", .absent = 0.25},
            {.key = "linear_num_key_heads", .field = "delta_key_heads", .absent = 16},
            {.key = "linear_num_value_heads", .field = "delta_heads", .absent = 32},
            {.key = "linear_key_head_dim", .field = "delta_key_dim", .absent = 128},
            {.key = "linear_value_head_dim", .field = "delta_dim", .absent = 128},
            {.key = "linear_conv_kernel_dim", .field = "delta_taps", .absent = 4},
            {.key = "num_experts",
             .field = "experts",
             .absent = 512,
             .aliases = {"num_local_experts"}},
            {.key = "num_experts_per_tok", .field = "experts_per_token", .absent = 10},
            {.key = "moe_intermediate_size", .field = "expert_hidden", .absent = 512},
            {.key = "shared_expert_intermediate_size", .field = "shared_hidden", .absent = 512},
            {.key = "norm_topk_prob", .field = "router_normalise", .absent = true},
            only_value("attention_bias", false)}}
      ),
      .always =
          {{"norm", "rmsnorm_1p"},
           {"bias", false},
           {"positions", "rope"},
           {"qk_norm", true},
           {"attention_gate", true},
           {"router", "softmax_topk"},
           {"shared_gate", true}},
      .harmless = {"output_router_logits", "router_aux_loss_coef"},
      .simplify = simplify_qwen3_next,
      .restore = restore_qwen3_next};
}

std::vector<HfTensor> qwen3_next_names(const HybridConfig& c, const std::string& all) {
  if (!has_names(c, all)) {
    return {};
  }
  std::vector<HfTensor> map{
      {"model.embed_tokens.weight", {"embedding.word.weight"}},
      {"model.norm.weight", {"head.norm.weight"}}};
  if (!c.tied) {
    map.push_back({"lm_head.weight", {"head.weight"}});
  }
  for (int64_t i = 0; i < c.layers; i += 2) {
    const char mixer = all[static_cast<size_t>(i)], second = all[static_cast<size_t>(i) + 1];
    if ((mixer != kDelta && mixer != kAttention) || (second != kMlp && second != kMixture)) {
      return {};
    }
    const std::string theirs = "model.layers." + std::to_string(i / 2) + ".";
    const std::string first = "layers." + std::to_string(i) + ".";
    const std::string last = "layers." + std::to_string(i + 1) + ".";
    map.push_back({theirs + "input_layernorm.weight", {first + "norm.weight"}});
    add_mixer(map, c, mixer, theirs, first);
    map.push_back({theirs + "post_attention_layernorm.weight", {last + "norm.weight"}});
    add_second(map, c, second, theirs + "mlp.", last + "mlp.");
  }
  return map;
}

} // namespace mh::hybrid
