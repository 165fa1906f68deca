#include "bert.hpp"

#include <megahost/nn/norm.hpp>

#include <string>
#include <string_view>

namespace mh::bert {

std::vector<HfTensor> megatron_names(const BertConfig& c) {
  constexpr std::string_view kDecoder = "decoder.", kEncoder = "encoder.";
  DecoderConfig layers = c;
  layers.causal = true; // changes no name
  std::vector<HfTensor> map = mh::megatron_names(layers);
  if (map.empty() || c.of_head() != "gelu") {
    return {};
  }
  for (HfTensor& one : map) {
    if (one.theirs.starts_with(kDecoder)) {
      one.theirs.replace(0, kDecoder.size(), kEncoder);
    }
  }
  if (c.token_types > 0) {
    map.push_back({"embedding.tokentype_embeddings.weight", {"embedding.token_type.weight"}});
  }
  add_names(map, "lm_head.dense", "head.transform");
  map.push_back({"lm_head.layer_norm.weight", {"head.transform_norm.weight"}});
  if (info(norm_kind(c.norm)).bias) {
    map.push_back({"lm_head.layer_norm.bias", {"head.transform_norm.bias"}});
  }
  map.push_back({.theirs = "output_layer.bias", .ours = {"head.bias"}, .padded = true});
  if (c.pair_head) {
    add_names(map, "pooler.dense", "head.pooler");
    add_names(map, "binary_head", "head.pair");
  }
  return map;
}

} // namespace mh::bert
