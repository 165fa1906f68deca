#include "t5.hpp"

#include <megahost/nn/decoder.hpp>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace mh::t5 {
namespace {

/// Both stacks as one decoder's layers, without what T5 has in addition to them.
DecoderConfig layers_of(const T5Config& c) {
  DecoderConfig layers;
  layers.vocab = c.vocab;
  layers.layers = c.encoder_layers + c.layers;
  layers.hidden = c.hidden;
  layers.heads = c.heads;
  layers.kv_heads = c.heads;
  layers.head_dim = c.head_dim;
  layers.norm = c.norm;
  layers.activation = c.activation;
  layers.positions = c.positions;
  layers.bias = c.bias;
  layers.tied = c.tied;
  return layers;
}

/// "decoder.layers.3.mlp.x" of both stacks -> "encoder.layers.3.mlp.x", or the decoder's own number.
std::string within_stack(const std::string& theirs, int64_t encoder_layers) {
  constexpr std::string_view kLayers = "decoder.layers.";
  if (!theirs.starts_with(kLayers)) {
    return theirs;
  }
  const size_t dot = theirs.find('.', kLayers.size());
  const int64_t layer = std::stoll(theirs.substr(kLayers.size(), dot - kLayers.size()));
  const bool decodes = layer >= encoder_layers;
  return (decodes ? "decoder.layers." : "encoder.layers.") +
         std::to_string(decodes ? layer - encoder_layers : layer) + theirs.substr(dot);
}

} // namespace

std::vector<HfTensor> megatron_names(const T5Config& c) {
  // Relative positions are added to scores without a factor here, and with one there; its rotary
  // positions have one base; and its head has a bias exactly if it is tied.
  constexpr double kRopeBase = 10000;
  if (c.relative() || (c.rotary() && c.rope_base != kRopeBase) || *c.head_scale ||
      c.bias != c.tied) {
    return {};
  }
  std::vector<HfTensor> map = mh::megatron_names(layers_of(c));
  if (map.empty()) {
    return {};
  }
  for (HfTensor& one : map) {
    one.theirs = within_stack(one.theirs, c.encoder_layers);
  }
  const bool norm_bias = info(norm_kind(c.norm)).bias;
  const auto add = [&](const std::string& theirs, const std::string& ours, bool bias) {
    map.push_back({theirs + ".weight", {ours + ".weight"}});
    if (bias) {
      map.push_back({theirs + ".bias", {ours + ".bias"}});
    }
  };
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string ours = "layers." + std::to_string(c.encoder_layers + i) + ".";
    const std::string theirs = "decoder.layers." + std::to_string(i) + ".";
    add(theirs + "pre_cross_attn_layernorm", ours + "cross_attention_norm", norm_bias);
    add(theirs + "cross_attention.linear_q", ours + "cross_attention.q", c.bias);
    for (const char* what : {".weight", ".bias"}) { // a head's key and value, then the next one's
      if (c.bias || std::string_view(what) == ".weight") {
        map.push_back(
            {.theirs = theirs + "cross_attention.linear_kv" + what,
             .ours = {ours + "cross_attention.k" + what, ours + "cross_attention.v" + what},
             .groups = c.heads}
        );
      }
    }
    add(theirs + "cross_attention.linear_proj", ours + "cross_attention.out", c.bias);
  }
  const std::string first = "layers." + std::to_string(c.encoder_layers) + ".";
  add("encoder.final_layernorm", first + "memory_norm", norm_bias);
  if (c.bias) {
    map.push_back({.theirs = "output_layer.bias", .ours = {"head.bias"}, .padded = true});
  }
  return map;
}

} // namespace mh::t5
