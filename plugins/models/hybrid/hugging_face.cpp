#include "config.hpp"
#include "qwen3_next.hpp"

#include <megahost/error.hpp>
#include <megahost/nn/decoder_hugging_face.hpp>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace mh::hybrid {

namespace {

/// Words of a list of layers, the first of each letter being the one that is written.
constexpr std::array<std::pair<const char*, char>, 6> kWords{{
    {"linear_attention", kMamba},
    {"mamba", kMamba},
    {"full_attention", kAttention},
    {"attention", kAttention},
    {"mlp", kMlp},
    {"moe", kMixture},
}};

HfKey always(const char* key, const Value& value) {
  return {.key = key, .absent = value, .words = {{value}}};
}

/// NemotronH's keys of mixtures, without meaning in a model that has none.
const std::vector<HfKey>& mixture_keys() {
  static const std::vector<HfKey> keys{
      {.key = "n_routed_experts",
       .field = "experts",
       .absent = 8,
       .aliases = {"num_local_experts"}},
      {.key = "num_experts_per_tok", .field = "experts_per_token", .absent = 2},
      {.key = "moe_intermediate_size", .field = "expert_hidden", .absent = 7688},
      {.key = "moe_latent_size", .field = "expert_latent"},
      {.key = "moe_shared_expert_intermediate_size", .field = "shared_hidden", .absent = 7688},
      {.key = "norm_topk_prob", .field = "router_normalise", .absent = true},
      {.key = "routed_scaling_factor", .field = "router_scale", .absent = 1.0},
      {.key = "n_group", .field = "router_groups", .absent = 1},
      {.key = "topk_group", .field = "router_groups_chosen", .absent = 1},
      always("n_shared_experts", 1),
  };
  return keys;
}

/// NemotronH has a list of words, or in older files a string of letters. It becomes that string, and
/// the number of layers its length.
constexpr auto kPattern = "hybrid_override_pattern";

char letter_of(const Value& word) {
  for (const auto& [theirs, letter] : kWords) {
    if (word == Value(theirs)) {
      return letter;
    }
  }
  refuse(word, "a layer is " + to_text(word));
}

void simplify_pattern(Table& config) {
  const Value layers = *config.find(kPattern);
  std::string made;
  if (layers.is_array()) {
    for (const Value& word : layers.as_array()) {
      made += letter_of(word);
    }
  } else {
    made = layers.is_string() ? layers.as_string() : "ME*-"; // transformers' own default
  }
  Value pattern(made);
  pattern.origin = layers.origin;
  if (made.find_first_not_of("M*-E") != std::string::npos) {
    refuse(pattern, "the pattern of layers is " + made);
  }
  if (made.find(kMixture) == std::string::npos) {
    for (const HfKey& of_mixtures : mixture_keys()) {
      config.set(of_mixtures.key, Value());
    }
    config.set("n_routed_experts", 0);
  }
  Value count(static_cast<int64_t>(made.size()));
  count.origin = layers.origin;
  config.set(kPattern, pattern);
  config.set("num_hidden_layers", count);
}

/// A letter for each layer.
std::string each_layer(const std::string& pattern, int64_t layers) {
  std::string all;
  for (int64_t i = 0; i < layers; ++i) {
    all += pattern[static_cast<size_t>(i) % pattern.size()];
  }
  return all;
}

void restore_pattern(Table& config) {
  Value::Array words;
  const int64_t layers = config.find("num_hidden_layers")->as_integer();
  const std::string all = each_layer(config.find(kPattern)->as_string(), layers);
  for (const char letter : all) {
    const auto* word = std::find_if(kWords.begin(), kWords.end(), [letter](const auto& one) {
      return one.second == letter;
    });
    if (word == kWords.end()) {
      throw Error(
          std::string("pattern has a layer ") + letter + ", which transformers' NemotronH has not",
          "layers of M, *, - and E"
      );
    }
    words.emplace_back(word->first);
  }
  if (all.find(kMixture) == std::string::npos) {
    for (const HfKey& of_mixtures : mixture_keys()) {
      config.erase(of_mixtures.key);
    }
  }
  config.erase(kPattern);
  config.erase("num_hidden_layers");
  config.set("layers_block_type", words);
}

/// The widths of Mamba2's mixers are said twice.
void require_one_width(const Table& config) {
  const auto number = [&config](const char* key, int64_t absent) {
    const Value* value = config.find(key);
    return value != nullptr && value->is_integer() ? value->as_integer() : absent;
  };
  const int64_t by_heads = number("num_heads", 128) * number("head_dim", 64);
  const int64_t expanded = number("hidden_size", 4096) * number("expand", 2);
  if (by_heads != expanded) {
    throw Error(
        "num_heads * head_dim = " + std::to_string(by_heads) +
            ", but hidden_size * expand = " + std::to_string(expanded),
        "transformers' Mamba2 refuses this, too"
    );
  }
}

/// The heads of attention that no layer of a Mamba2 has: any number that ranks can share, as they
/// share those of its mixers. Never in a file.
constexpr const char* kNoHeads = "num_attention_heads";

void add_heads(Table& config) {
  const Value& heads = *config.find("num_heads");
  const Value& hidden = *config.find("hidden_size");
  const bool whole = heads.is_integer() && hidden.is_integer() && heads.as_integer() > 0 &&
                     hidden.as_integer() % heads.as_integer() == 0;
  config.set(kNoHeads, whole ? heads : Value(1));
}

/// Mamba2's steps have two limits, of which the second is infinite.
void simplify_mamba2(Table& config) {
  require_one_width(config);
  add_heads(config);
  const Value* limits = config.find("time_step_limit");
  if (limits == nullptr || !limits->is_array() || limits->as_array().size() != 2) {
    return;
  }
  const Value& most = limits->as_array()[1];
  const bool infinite = most.is_table() || to_text(most).find("nf") != std::string::npos;
  if (!infinite) {
    refuse(*limits, "time_step_limit ends at " + to_text(most));
  }
  Value least = limits->as_array()[0];
  least.origin = limits->origin;
  config.set("time_step_limit", least);
}

void restore_mamba2(Table& config) {
  config.erase(kNoHeads);
  const Value least = *config.find("time_step_limit");
  config.set("time_step_limit", Value::Array{least, Value(Table{{"__float__", "Infinity"}})});
  const int64_t inner =
      config.find("num_heads")->as_integer() * config.find("head_dim")->as_integer();
  const int64_t hidden = config.find("hidden_size")->as_integer();
  if (inner % hidden != 0) {
    throw Error(
        "mamba_heads * mamba_head_dim = " + std::to_string(inner) + " is no multiple of hidden " +
            std::to_string(hidden),
        "transformers' Mamba2 has a whole `expand`"
    );
  }
  config.set("expand", inner / hidden);
}

/// The keys that both families have, under the names that both use.
std::vector<HfKey> common_keys(int64_t vocab, int64_t chunk) {
  return {
      {.key = "vocab_size", .field = "vocab", .absent = vocab},
      {.key = "hidden_size", .field = "hidden", .absent = 4096},
      {.key = "num_hidden_layers", .field = "layers", .absent = 64},
      {.key = "layer_norm_epsilon", .field = "norm_eps", .absent = 1e-5},
      {.key = "n_groups", .field = "mamba_groups", .absent = 8},
      {.key = "conv_kernel", .field = "mamba_taps", .absent = 4},
      {.key = "use_conv_bias", .field = "mamba_conv_bias", .absent = true},
      {.key = "chunk_size", .field = "mamba_chunk", .absent = chunk, .compared = false},
  };
}

std::vector<std::string> harmless() {
  return {
      "expand",
      "mamba_ssm_cache_dtype",
      "num_logits_to_keep",
      "rescale_prenorm_residual",
      "residual_in_fp32",
      "time_step_floor",
      "time_step_max",
      "time_step_rank",
      "use_mamba_kernels"};
}

HfModel mamba2() {
  return {
      .model_type = "mamba2",
      .architecture = "Mamba2ForCausalLM",
      .keys = joined(
          {common_keys(/*vocab=*/32768, /*chunk=*/256),
           {{.key = "num_heads", .field = "mamba_heads", .absent = 128},
            {.key = "head_dim", .field = "mamba_head_dim", .absent = 64},
            {.key = kNoHeads, .field = "heads", .absent = 1, .compared = false},
            {.key = "state_size", .field = "mamba_state", .absent = 128},
            {.key = "time_step_limit", .field = "mamba_least_step", .absent = 0.0},
            {.key = "use_bias", .field = "bias", .absent = false},
            {.key = "tie_word_embeddings", .field = "tied", .absent = false},
            always("hidden_act", "silu")}}
      ),
      .always = {{"pattern", std::string(1, kMamba)}},
      .harmless =
          [] {
            auto keys = harmless();
            keys.emplace_back("time_step_min");
            return keys;
          }(),
      .simplify = simplify_mamba2,
      .restore = restore_mamba2};
}

HfModel nemotron() {
  return {
      .model_type = "nemotron_h",
      .architecture = "NemotronHForCausalLM",
      .keys = joined(
          {common_keys(/*vocab=*/131072, /*chunk=*/128),
           mixture_keys(),
           {{.key = kPattern, .field = "pattern", .aliases = {"layers_block_type"}},
            {.key = "num_attention_heads", .field = "heads", .absent = 32},
            {.key = "num_key_value_heads", .field = "kv_heads", .absent = 8},
            {.key = "head_dim", .field = "head_dim", .absent = 128},
            {.key = "intermediate_size", .field = "ffn_hidden", .absent = 21504},
            {.key = "mlp_hidden_act",
             .field = "activation",
             .absent = "relu2",
             .words =
                 {{"relu2", "relu2"},
                  {"relu", "relu"},
                  {"gelu", "gelu"},
                  {"gelu_new", "gelu_tanh"},
                  {"gelu_pytorch_tanh", "gelu_tanh"}}},
            {.key = "mamba_num_heads", .field = "mamba_heads", .absent = 128},
            {.key = "mamba_head_dim", .field = "mamba_head_dim", .absent = 64},
            {.key = "ssm_state_size", .field = "mamba_state", .absent = 128},
            {.key = "time_step_min", .field = "mamba_least_step", .absent = 1e-3},
            {.key = "max_position_embeddings",
             .field = "seq_length",
             .absent = 4096,
             .compared = false},
            {.key = "sliding_window", .words = {{Value()}}},
            always("mamba_hidden_act", "silu"),
            always("tie_word_embeddings", false),
            always("attention_bias", false),
            always("mamba_proj_bias", false),
            always("mlp_bias", false),
            always("use_bias", false)}}
      ),
      .always = {{"router", "sigmoid"}, {"balance", Value::Array{"bias"}}},
      .harmless =
          [] {
            auto keys = harmless();
            for (const char* key : // multi-token prediction is no part of the model
                 {"hidden_dropout",
                  "moe_shared_expert_overlap",
                  "mtp_hybrid_override_pattern",
                  "mtp_layers_block_type",
                  "num_nextn_predict_layers",
                  "output_router_logits",
                  "time_step_limit"}) {
              keys.emplace_back(key);
            }
            return keys;
          }(),
      .simplify = simplify_pattern,
      .restore = restore_pattern};
}

/// A letter a layer, and no sizes of what no layer is.
void plain(Table& f) {
  const bool attends = f.find("pattern")->as_string().find(kAttention) != std::string::npos;
  if (!attends && *f.find("positions") == Value("rope")) {
    f.set("positions", "none"); // nothing is rotated
  }
  decoder_plain(f);
  mixture_plain(f);
  Value& pattern = *f.find("pattern");
  const std::string all = each_layer(pattern.as_string(), f.find("layers")->as_integer());
  const Origin origin = pattern.origin;
  pattern = Value(all);
  pattern.origin = origin;
  const auto none = [&](char letter) { return all.find(letter) == std::string::npos; };
  const auto erase = [&](std::initializer_list<const char*> fields) {
    for (const char* field : fields) {
      f.erase(field);
    }
  };
  if (none(kMamba)) {
    erase({"mamba_heads", "mamba_head_dim", "mamba_groups", "mamba_state", "mamba_taps"});
    erase({"mamba_conv_bias", "mamba_least_step"});
  } else if (const Value* heads = f.find("mamba_heads"); heads == nullptr || heads->is_null()) {
    f.set(
        "mamba_heads", 2 * f.find("hidden")->as_integer() / f.find("mamba_head_dim")->as_integer()
    );
  }
  if (none(kDelta)) {
    erase({"delta_key_heads", "delta_heads", "delta_key_dim", "delta_dim", "delta_taps"});
  } else if (const Value* heads = f.find("delta_heads"); heads == nullptr || heads->is_null()) {
    f.set("delta_heads", f.find("delta_key_heads")->as_integer());
  }
  if (none(kAttention)) {
    erase({"heads", "kv_heads", "head_dim", "score_dim", "qkv_bias", "qk_norm", "qk_norm_over"});
    erase({"qk_norm_kind", "causal", "attention_gate"});
  }
  if (none(kMixture)) {
    erase({"experts", "experts_per_token", "expert_hidden", "expert_latent"});
    erase({"shared_hidden", "shared_gate"});
    erase({"router", "router_normalise", "router_scale", "router_groups", "router_groups_chosen"});
  }
  if (none(kMlp)) {
    erase({"ffn_hidden"});
  }
  if (none(kMlp) && none(kMixture)) {
    erase({"activation"});
  }
}

/// Adds the names of one layer.
void add_layer(
    std::vector<HfTensor>& map,
    char kind,
    const std::string& theirs,
    const std::string& ours,
    const HybridConfig& c
) {
  const auto add = [&](const std::string& their_name, const std::string& our_name) {
    map.push_back({theirs + "mixer." + their_name, {ours + our_name}});
  };
  map.push_back({theirs + "norm.weight", {ours + "norm.weight"}});
  if (kind == kAttention) {
    for (const std::string part : {"q", "k", "v"}) {
      add(part + "_proj.weight", "attention." + part + ".weight");
    }
    add("o_proj.weight", "attention.out.weight");
  } else if (kind == kMlp) {
    add_feed_forward_names(c, theirs + "mixer.", ours + "mlp.", map);
  } else if (kind == kMixture) {
    add_expert_names(c, /*gated=*/false, theirs + "mixer.", ours + "mlp.", map);
    add_feed_forward_names(c, theirs + "mixer.shared_experts.", ours + "mlp.shared.", map);
    if (c.expert_latent) {
      add("fc1_latent_proj.weight", "mlp.latent_down.weight");
      add("fc2_latent_proj.weight", "mlp.latent_up.weight");
    }
  } else {
    const auto pieces = [&](const std::string& their_name,
                            const std::string& folder,
                            std::initializer_list<const char*> parts,
                            const std::string& what) {
      HfTensor tensor{theirs + "mixer." + their_name + "." + what, {}};
      for (const char* part : parts) {
        tensor.ours.push_back(ours + "mamba." + folder + part + "." + what);
      }
      map.push_back(std::move(tensor));
    };
    for (const std::string what : {"weight", "bias"}) {
      const bool weight = what == "weight";
      if (weight || c.bias) {
        pieces("in_proj", "", {"z", "x", "b", "c", "dt"}, what);
        pieces("out_proj", "", {"out"}, what);
      }
      if (weight || c.mamba_conv_bias) {
        pieces("conv1d", "convolution.", {"x", "b", "c"}, what);
      }
    }
    add("dt_bias", "mamba.dt_bias");
    add("A_log", "mamba.a_log");
    add("D", "mamba.d");
    add("norm.weight", "mamba.norm.weight");
  }
}

} // namespace

void refuse(const Value& at, const std::string& what) {
  throw Error(
      at.origin.where() + ": " + what + ", which hybrid cannot do",
      "layers of Mamba-2, gated DeltaNet, attention, feed-forwards and mixtures of experts",
      exit_code::data
  );
}

HfMapping hugging_face_mapping() {
  std::vector<std::string> free = decoder_free();
  free.emplace_back("mamba_chunk");
  free.emplace_back("delta_chunk");
  std::ranges::move(mixture_free(), std::back_inserter(free));
  return {.models = {mamba2(), nemotron(), qwen3_next()}, .free = std::move(free), .plain = plain};
}

std::vector<HfTensor> hugging_face_names(const HybridConfig& c) {
  const std::string all = each_layer(c.pattern, c.layers);
  const auto has = [&](char letter) { return all.find(letter) != std::string::npos; };
  const bool feeds_forward = has(kMlp) || has(kMixture);
  const bool only_mamba = !has(kAttention) && !feeds_forward;
  if (c.positions == "learned" || c.kv_rank || c.window || c.scaled_embedding || c.head_bias ||
      c.logit_cap || c.score_cap || c.sinks || c.score_dim) {
    return {};
  }
  if (has(kDelta) || c.attention_gate || c.shared_gate) {
    return qwen3_next_names(c, all);
  }
  if (c.positions != "none" || c.norm != "rmsnorm" || (c.bias && !only_mamba) ||
      (c.tied && !only_mamba) || (has(kAttention) && (c.qk_norm || *c.qkv_bias)) ||
      (feeds_forward && is_gated(activation_kind(c.activation))) ||
      (has(kMixture) && (c.router != "sigmoid" || !c.shared_hidden)) || !c.rates_groups_by_two()) {
    return {};
  }
  std::vector<HfTensor> map{
      {"backbone.embeddings.weight", {"embedding.word.weight"}},
      {"backbone.norm_f.weight", {"head.norm.weight"}}};
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string number = std::to_string(i) + ".";
    const char kind = all[static_cast<size_t>(i)];
    add_layer(map, kind, "backbone.layers." + number, "layers." + number, c);
  }
  if (!c.tied) {
    map.push_back({"lm_head.weight", {"head.weight"}});
  }
  return map;
}

} // namespace mh::hybrid
