// Hugging Face's names of the tensors of GPT and its relatives.

#include "hugging_face.hpp"

#include <string>
#include <vector>

namespace mh::gpt {
namespace {

/// Hugging Face's names of a family's tensors; null for those that it lacks. The names of a layer's
/// tensors come behind `layer` and its number. Query, key and value are in one tensor unless `key`
/// and `value` have names: rows of a key head's queries, its key and its value come before those of
/// the next if `by_head`. Weights of linear layers are [in, out] if `transpose`.
struct Family {
  const char *words, *positions, *final_norm, *head;
  const char *layer, *attention_norm, *query, *key, *value, *out, *mlp_norm, *up, *down;
  bool transpose, by_head;
};

constexpr Family kGpt2{
    .words = "transformer.wte",
    .positions = "transformer.wpe",
    .final_norm = "transformer.ln_f",
    .head = "lm_head",
    .layer = "transformer.h.",
    .attention_norm = "ln_1",
    .query = "attn.c_attn",
    .key = nullptr,
    .value = nullptr,
    .out = "attn.c_proj",
    .mlp_norm = "ln_2",
    .up = "mlp.c_fc",
    .down = "mlp.c_proj",
    .transpose = true,
    .by_head = false};

/// The first GPT, whose norms come after the sums.
constexpr Family kGpt = [] {
  Family family = kGpt2;
  family.words = "transformer.tokens_embed";
  family.positions = "transformer.positions_embed";
  family.final_norm = nullptr;
  return family;
}();

constexpr Family kNeox{
    .words = "gpt_neox.embed_in",
    .positions = nullptr,
    .final_norm = "gpt_neox.final_layer_norm",
    .head = "embed_out",
    .layer = "gpt_neox.layers.",
    .attention_norm = "input_layernorm",
    .query = "attention.query_key_value",
    .key = nullptr,
    .value = nullptr,
    .out = "attention.dense",
    .mlp_norm = "post_attention_layernorm",
    .up = "mlp.dense_h_to_4h",
    .down = "mlp.dense_4h_to_h",
    .transpose = false,
    .by_head = true};

constexpr Family kPhi{
    .words = "model.embed_tokens",
    .positions = nullptr,
    .final_norm = "model.final_layernorm",
    .head = "lm_head",
    .layer = "model.layers.",
    .attention_norm = "input_layernorm",
    .query = "self_attn.q_proj",
    .key = "self_attn.k_proj",
    .value = "self_attn.v_proj",
    .out = "self_attn.dense",
    .mlp_norm = nullptr,
    .up = "mlp.fc1",
    .down = "mlp.fc2",
    .transpose = false,
    .by_head = false};

/// Falcon whose parts run one after the other.
constexpr Family kFalcon{
    .words = "transformer.word_embeddings",
    .positions = nullptr,
    .final_norm = "transformer.ln_f",
    .head = "lm_head",
    .layer = "transformer.h.",
    .attention_norm = "input_layernorm",
    .query = "self_attention.query_key_value",
    .key = nullptr,
    .value = nullptr,
    .out = "self_attention.dense",
    .mlp_norm = "post_attention_layernorm",
    .up = "mlp.dense_h_to_4h",
    .down = "mlp.dense_4h_to_h",
    .transpose = false,
    .by_head = true};

/// Falcon 7B: one norm for both parts.
constexpr Family kFalconOneNorm = [] {
  Family family = kFalcon;
  family.mlp_norm = nullptr;
  return family;
}();

/// Falcon 40B: a norm for each of two parallel parts.
constexpr Family kFalconTwoNorms = [] {
  Family family = kFalcon;
  family.attention_norm = "ln_attn";
  family.mlp_norm = "ln_mlp";
  return family;
}();

/// The family that has these fields, or null.
const Family* counterpart(const DecoderConfig& c) {
  const bool post = c.norm_placement == "post", pre = c.norm_placement == "pre";
  if (c.norm != "layernorm" || !(pre || post) || c.bias != *c.qkv_bias || c.qk_norm || c.kv_rank ||
      c.scaled_embedding || c.score_dim || c.score_cap || c.sinks || c.attention_gate ||
      c.logit_cap || c.logit_scale != 1 || c.rope_pairs != "halves" || !c.rope_pattern.empty() ||
      is_gated(activation_kind(c.activation))) {
    return nullptr;
  }
  if (c.positions == "learned") {
    return !c.bias || c.shared_norm || c.head_bias ? nullptr : post ? &kGpt : &kGpt2;
  }
  const bool rotates = c.positions == "rope";
  if ((!rotates && c.positions != "alibi_scaled") || post) {
    return nullptr;
  }
  if (c.head_bias) {
    return rotates && c.bias && c.shared_norm ? &kPhi : nullptr;
  }
  if (rotates && c.bias && !c.shared_norm && *c.kv_heads == c.heads) {
    return &kNeox;
  }
  return c.shared_norm ? &kFalconOneNorm : c.parallel_residual ? &kFalconTwoNorms : &kFalcon;
}

} // namespace

std::vector<HfTensor> hugging_face_names(const DecoderConfig& c) {
  const Family* family = counterpart(c);
  if (family == nullptr) {
    return {};
  }
  std::vector<HfTensor> map;
  const auto add = [&](const std::string& theirs, const std::string& ours, const char* what) {
    map.push_back({theirs + what, {ours + what}});
  };
  const auto norm = [&](const std::string& theirs, const std::string& ours) {
    add(theirs, ours, ".weight");
    add(theirs, ours, ".bias");
  };
  add(family->words, "embedding.word", ".weight");
  if (family->positions != nullptr) {
    add(family->positions, "embedding.position", ".weight");
  }
  if (family->final_norm != nullptr) {
    norm(family->final_norm, "head.norm");
  }
  if (!c.tied) {
    add(family->head, "head", ".weight");
  }
  if (c.head_bias) {
    add(family->head, "head", ".bias");
  }
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string ours = "layers." + std::to_string(i) + ".";
    const std::string theirs = family->layer + std::to_string(i) + ".";
    const auto linear =
        [&](const char* name, const std::vector<std::string>& pieces, int64_t groups = 1) {
          HfTensor weight{theirs + name + ".weight", {}, family->transpose, {}, groups};
          HfTensor bias{theirs + name + ".bias", {}, /*transpose=*/false, {}, groups};
          for (const auto& piece : pieces) {
            weight.ours.push_back(ours + piece + ".weight");
            bias.ours.push_back(ours + piece + ".bias");
          }
          map.push_back(weight);
          if (c.bias) {
            map.push_back(bias);
          }
        };
    norm(theirs + family->attention_norm, ours + "attention_norm");
    if (family->mlp_norm != nullptr) {
      norm(theirs + family->mlp_norm, ours + "mlp_norm");
    }
    if (family->key == nullptr) {
      linear(
          family->query,
          {"attention.q", "attention.k", "attention.v"},
          family->by_head ? *c.kv_heads : 1
      );
    } else {
      linear(family->query, {"attention.q"});
      linear(family->key, {"attention.k"});
      linear(family->value, {"attention.v"});
    }
    linear(family->out, {"attention.out"});
    linear(family->up, {"mlp.up"});
    linear(family->down, {"mlp.down"});
  }
  return map;
}

} // namespace mh::gpt
