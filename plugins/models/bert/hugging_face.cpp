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

/// The head's activation is that of the layers.
void plain(Table& fields) {
  decoder_plain(fields);
  const Value* of_head = fields.find("head_activation");
  if (of_head != nullptr && *of_head == *fields.find("activation")) {
    fields.erase("head_activation");
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
  std::vector<HfKey> keys = encoder_keys(vocab, hidden, layers);
  keys.push_back({.key = "tie_word_embeddings", .field = "tied", .absent = true});
  keys.push_back({.key = kPairHead, .field = "pair_head", .absent = true});
  return {
      .model_type = type,
      .architecture = architecture,
      .keys = std::move(keys),
      .always = {{"norm_placement", placement}},
      .harmless = harmless_encoder_keys(),
      .simplify = simplify,
      .restore = restore};
}

} // namespace

HfMapping hugging_face_mapping() {
  return {
      .models =
          {model("bert", "BertForPreTraining", "post", 30522, 768, 12),
           model("megatron-bert", "MegatronBertForPreTraining", "pre", 29056, 1024, 24)},
      .free = decoder_free(),
      .plain = plain};
}

std::vector<HfTensor> hugging_face_names(const BertConfig& c) {
  if (!has_counterpart(c) || c.of_head() != c.activation) {
    return {};
  }
  std::vector<HfTensor> map;
  add_encoder_names(map, c, {"bert.", ""});
  add_names(map, "cls.predictions.transform.dense", "head.transform");
  add_names(map, "cls.predictions.transform.LayerNorm", "head.transform_norm");
  map.push_back({"cls.predictions.bias", {"head.bias"}});
  if (!c.tied) {
    map.push_back({"cls.predictions.decoder.weight", {"head.weight"}});
  }
  if (c.pair_head) {
    add_names(map, "bert.pooler.dense", "head.pooler");
    add_names(map, "cls.seq_relationship", "head.pair");
  }
  return map;
}

} // namespace mh::bert
