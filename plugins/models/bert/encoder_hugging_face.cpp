#include "encoder.hpp"

#include <megahost/hugging_face.hpp>

#include <string>

namespace mh::bert {

std::vector<HfKey> encoder_keys(int64_t vocab, int64_t hidden, int64_t layers) {
  return {
      {.key = "vocab_size", .field = "vocab", .absent = vocab},
      {.key = "max_position_embeddings", .field = "seq_length", .absent = 512},
      {.key = "hidden_size", .field = "hidden", .absent = hidden},
      {.key = "num_hidden_layers", .field = "layers", .absent = layers},
      {.key = "num_attention_heads", .field = "heads", .absent = hidden / 64},
      {.key = "intermediate_size", .field = "ffn_hidden", .absent = 4 * hidden},
      {.key = "hidden_act",
       .field = "activation",
       .absent = "gelu",
       .words =
           {{"gelu", "gelu"},
            {"gelu_python", "gelu"},
            {"gelu_new", "gelu_tanh"},
            {"gelu_pytorch_tanh", "gelu_tanh"},
            {"gelu_fast", "gelu_tanh"},
            {"relu", "relu"},
            {"relu2", "relu2"}}},
      {.key = "layer_norm_eps", .field = "norm_eps", .absent = 1e-12},
      {.key = "type_vocab_size", .field = "token_types", .absent = 2},
      {.key = "position_embedding_type", .absent = "absolute", .words = {{"absolute"}}}};
}

std::vector<std::string> harmless_encoder_keys() {
  return {
      "attention_probs_dropout_prob",
      "classifier_dropout",
      "directionality",
      "hidden_dropout_prob",
      "layer_norm_type",
      "pooler_fc_size",
      "pooler_num_attention_heads",
      "pooler_num_fc_layers",
      "pooler_size_per_head",
      "pooler_type"};
}

bool has_counterpart(const EncoderConfig& c) {
  return c.norm == "layernorm" && c.positions == "learned" && c.token_types > 0 && c.bias &&
         *c.qkv_bias && !c.qk_norm && !c.shared_norm && !c.score_cap && !c.sinks &&
         !c.attention_gate && !c.kv_rank && *c.kv_heads == c.heads &&
         *c.head_dim * c.heads == c.hidden;
}

void add_names(std::vector<HfTensor>& map, const std::string& theirs, const std::string& ours) {
  map.push_back({theirs + ".weight", {ours + ".weight"}});
  map.push_back({theirs + ".bias", {ours + ".bias"}});
}

void add_encoder_names(
    std::vector<HfTensor>& map, const EncoderConfig& c, const EncoderNames& names
) {
  const std::string embeddings = names.theirs + "embeddings.";
  const std::string tables = "embedding." + names.tower;
  map.push_back({embeddings + "word_embeddings.weight", {tables + "word.weight"}});
  map.push_back({embeddings + "position_embeddings.weight", {tables + "position.weight"}});
  if (c.token_types > 0) {
    map.push_back({embeddings + "token_type_embeddings.weight", {tables + "token_type.weight"}});
  }
  if (c.post()) {
    add_names(map, embeddings + "LayerNorm", tables + "norm");
  } else {
    add_names(map, names.theirs + "encoder.ln", "head." + names.tower + "norm");
  }
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string ours = "layers." + std::to_string(i) + "." + names.tower;
    const std::string theirs = names.theirs + "encoder.layer." + std::to_string(i) + ".";
    add_names(map, theirs + "attention.self.query", ours + "attention.q");
    add_names(map, theirs + "attention.self.key", ours + "attention.k");
    add_names(map, theirs + "attention.self.value", ours + "attention.v");
    add_names(map, theirs + "attention.output.dense", ours + "attention.out");
    add_names(map, theirs + "intermediate.dense", ours + "mlp.up");
    add_names(map, theirs + "output.dense", ours + "mlp.down");
    add_names(
        map,
        theirs + (c.post() ? "attention.output.LayerNorm" : "attention.ln"),
        ours + "attention_norm"
    );
    add_names(map, theirs + (c.post() ? "output.LayerNorm" : "ln"), ours + "mlp_norm");
  }
}

} // namespace mh::bert
