#include "retriever.hpp"

#include <megahost/nn/decoder_hugging_face.hpp>

#include <utility>

namespace mh::bert {
namespace {

/// The towers, and how transformers begins their names.
std::vector<std::pair<std::string, std::string>> towers_of(const RetrieverConfig& c) {
  if (c.shared_towers) {
    return {{"", "question_encoder."}};
  }
  return {{"query.", "question_encoder."}, {"context.", "ctx_encoder."}};
}

} // namespace

HfMapping retriever_mapping() {
  std::vector<HfKey> keys = encoder_keys(30522, 768, 12);
  keys.push_back({.key = "projection_dim", .field = "projection_dim", .absent = 0});
  std::vector<std::string> harmless = harmless_encoder_keys();
  harmless.emplace_back("tie_word_embeddings");
  std::vector<std::string> free = decoder_free();
  for (const char* field :
       {"shared_towers", "query_length", "hard_negatives", "score_scaling", "report_top"}) {
    free.emplace_back(field);
  }
  return {
      .models =
          {{.model_type = "dpr",
            .architecture = "DPRQuestionEncoder",
            .keys = std::move(keys),
            .always = {{"norm_placement", "post"}},
            .harmless = std::move(harmless)}},
      .free = std::move(free),
      .plain = decoder_plain};
}

std::vector<HfTensor> retriever_names(const RetrieverConfig& c) {
  if (!has_counterpart(c) || !c.post()) {
    return {};
  }
  std::vector<HfTensor> map;
  for (const auto& [tower, theirs] : towers_of(c)) {
    add_encoder_names(map, c, {theirs + "bert_model.", tower});
    if (c.projection_dim > 0) {
      add_names(map, theirs + "encode_proj", "head." + tower + "projection");
    }
  }
  return map;
}

std::vector<Upcycled> upcycled_towers(const RetrieverConfig& c) {
  std::vector<Upcycled> all;
  std::vector<HfTensor> encoder;
  add_encoder_names(encoder, c, {"", ""});
  for (const auto& [tower, theirs] : towers_of(c)) {
    if (c.projection_dim > 0) {
      all.push_back({"head." + tower + "projection.", {}});
    }
    std::vector<HfTensor> own;
    add_encoder_names(own, c, {"", tower});
    for (size_t i = 0; !tower.empty() && i < own.size(); ++i) {
      all.push_back({own[i].ours.front(), encoder[i].ours});
    }
  }
  // BERT's head has no place in a retriever: what learns hidden tokens is left behind.
  all.push_back(
      {"head.of_tokens",
       {"head.transform.weight",
        "head.transform.bias",
        "head.transform_norm.weight",
        "head.transform_norm.bias",
        "head.weight",
        "head.bias",
        "head.pooler.weight",
        "head.pooler.bias",
        "head.pair.weight",
        "head.pair.bias"}}
  );
  return all;
}

} // namespace mh::bert
