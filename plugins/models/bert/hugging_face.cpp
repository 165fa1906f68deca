#include "bert.hpp"

#include <megahost/nn/decoder_hugging_face.hpp>

#include <string>
#include <utility>

namespace mh::bert {
namespace {

/// A model that only learned hidden tokens has no head of pairs, which its `architectures` tell.
constexpr auto kPairHead = "pair_head";

void simplify(Table& config) {
  const Value* classes = config.find("architectures");
  if (classes == nullptr || !classes->is_array() || classes->as_array().empty()) {
    return;
  }
  const Value& first = classes->as_array().front();
  Value pairs(first.is_string() && first.as_string().ends_with("ForPreTraining"));
  pairs.origin = classes->origin;
  config.set(kPairHead, pairs);
}

void restore(Table& config) {
  const bool pairs = *config.find(kPairHead) == Value(true);
  config.erase(kPairHead);
  if (!pairs) {
    std::string name = config.find("architectures")->as_array().front().as_string();
    name.replace(name.find("ForPreTraining"), std::string::npos, "ForMaskedLM");
    config.set("architectures", Value::Array{name});
  }
}

HfModel model(
    const char* type,
    const char* architecture,
    const char* placement,
    int64_t vocab,
    int64_t hidden,
    int64_t layers
) {
  return {
      .model_type = type,
      .architecture = architecture,
      .keys =
          {{.key = "vocab_size", .field = "vocab", .absent = vocab},
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
           {.key = "tie_word_embeddings", .field = "tied", .absent = true},
           {.key = "position_embedding_type", .absent = "absolute", .words = {{"absolute"}}},
           {.key = kPairHead, .field = "pair_head", .absent = true}},
      .always = {{"norm_placement", placement}},
      .harmless =
          {"attention_probs_dropout_prob",
           "classifier_dropout",
           "directionality",
           "hidden_dropout_prob",
           "layer_norm_type",
           "pooler_fc_size",
           "pooler_num_attention_heads",
           "pooler_num_fc_layers",
           "pooler_size_per_head",
           "pooler_type"},
      .simplify = simplify,
      .restore = restore};
}

/// Rows of names, each for a weight and, where there is one, its bias.
class Names {
public:
  void add(const std::string& theirs, const std::string& ours, bool bias = true) {
    map_.push_back({theirs + ".weight", {ours + ".weight"}});
    if (bias) {
      map_.push_back({theirs + ".bias", {ours + ".bias"}});
    }
  }

  void add_tensor(const std::string& theirs, const std::string& ours) {
    map_.push_back({theirs, {ours}});
  }

  [[nodiscard]] std::vector<HfTensor> take() { return std::move(map_); }

private:
  std::vector<HfTensor> map_;
};

} // namespace

HfMapping hugging_face_mapping() {
  return {
      .models =
          {model("bert", "BertForPreTraining", "post", 30522, 768, 12),
           model("megatron-bert", "MegatronBertForPreTraining", "pre", 29056, 1024, 24)},
      .free = decoder_free(),
      .plain = decoder_plain};
}

std::vector<HfTensor> hugging_face_names(const BertConfig& c) {
  if (c.norm != "layernorm" || c.positions != "learned" || !c.bias || !*c.qkv_bias || c.qk_norm ||
      c.shared_norm || c.score_cap || c.sinks || c.kv_rank || *c.kv_heads != c.heads ||
      *c.head_dim * c.heads != c.hidden) {
    return {};
  }
  Names names;
  const std::string embeddings = "bert.embeddings.";
  names.add(embeddings + "word_embeddings", "embedding.word", /*bias=*/false);
  names.add(embeddings + "position_embeddings", "embedding.position", /*bias=*/false);
  names.add(embeddings + "token_type_embeddings", "embedding.token_type", /*bias=*/false);
  if (c.post()) {
    names.add(embeddings + "LayerNorm", "embedding.norm");
  } else {
    names.add("bert.encoder.ln", "head.norm");
  }
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string ours = "layers." + std::to_string(i) + ".";
    const std::string theirs = "bert.encoder.layer." + std::to_string(i) + ".";
    names.add(theirs + "attention.self.query", ours + "attention.q");
    names.add(theirs + "attention.self.key", ours + "attention.k");
    names.add(theirs + "attention.self.value", ours + "attention.v");
    names.add(theirs + "attention.output.dense", ours + "attention.out");
    names.add(theirs + "intermediate.dense", ours + "mlp.up");
    names.add(theirs + "output.dense", ours + "mlp.down");
    names.add(
        theirs + (c.post() ? "attention.output.LayerNorm" : "attention.ln"), ours + "attention_norm"
    );
    names.add(theirs + (c.post() ? "output.LayerNorm" : "ln"), ours + "mlp_norm");
  }
  names.add("cls.predictions.transform.dense", "head.transform");
  names.add("cls.predictions.transform.LayerNorm", "head.transform_norm");
  names.add_tensor("cls.predictions.bias", "head.bias");
  if (!c.tied) {
    names.add_tensor("cls.predictions.decoder.weight", "head.weight");
  }
  if (c.pair_head) {
    names.add("bert.pooler.dense", "head.pooler");
    names.add("cls.seq_relationship", "head.pair");
  }
  return names.take();
}

} // namespace mh::bert
