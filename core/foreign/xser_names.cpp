#include "core/foreign/xser_names.hpp"

#include <array>
#include <charconv>
#include <cstdio>

namespace mh {

namespace {

constexpr std::string_view kHfLayers = "model.layers.";

} // namespace

const std::vector<XserTensor>& xser_tensors() {
  static const std::vector<XserTensor> all{
      {"model.embed_tokens.weight"},
      {"lm_head.weight"},
      {"model.norm.weight", {}, -1},
      {".input_layernorm.weight", {}, -1},
      {".post_attention_layernorm.weight", {}, -1},
      {".self_attn.q_proj.weight"},
      {".self_attn.k_proj.weight"},
      {".self_attn.v_proj.weight"},
      {".self_attn.q_proj.bias"},
      {".self_attn.k_proj.bias"},
      {".self_attn.v_proj.bias"},
      {".self_attn.o_proj.weight", {}, 1},
      {".mlp.gate_up_proj.weight", {".mlp.gate_proj.weight", ".mlp.up_proj.weight"}},
      {".mlp.down_proj.weight", {}, 1},
      // Forms of config.qkv_linear and config.fuse_qkv.
      {".self_attn.qkv_proj.weight_q", {".self_attn.q_proj.weight"}, 0, false},
      {".self_attn.qkv_proj.weight_k", {".self_attn.k_proj.weight"}, 0, false},
      {".self_attn.qkv_proj.weight_v", {".self_attn.v_proj.weight"}, 0, false},
      {".self_attn.qkv_proj.bias_q", {".self_attn.q_proj.bias"}, 0, false},
      {".self_attn.qkv_proj.bias_k", {".self_attn.k_proj.bias"}, 0, false},
      {".self_attn.qkv_proj.bias_v", {".self_attn.v_proj.bias"}, 0, false},
      {".self_attn.qkv_proj.weight",
       {".self_attn.q_proj.weight", ".self_attn.k_proj.weight", ".self_attn.v_proj.weight"},
       0,
       false}};
  return all;
}

int64_t hf_layer(std::string_view name) {
  int64_t layer = -1;
  if (name.starts_with(kHfLayers)) {
    std::from_chars(name.data() + kHfLayers.size(), name.data() + name.size(), layer);
  }
  return layer;
}

std::optional<std::string> before_ending(std::string_view name, std::string_view ending) {
  const int64_t layer = hf_layer(name);
  const std::string before = layer < 0 ? "" : std::string(kHfLayers) + std::to_string(layer);
  return name == before + std::string(ending) ? std::optional(before) : std::nullopt;
}

std::string xser_folder(int64_t step) {
  return "step_" + std::to_string(step);
}

std::string xser_file(int64_t tensor, int64_t pipeline) {
  std::array<char, 80> name{};
  std::snprintf(
      name.data(),
      name.size(),
      "tp_rank_%02d_pp_rank_%02d.pt",
      static_cast<int>(tensor),
      static_cast<int>(pipeline)
  );
  return std::string(kXserModel) + "/" + std::string(kXserDataRank) + name.data();
}

} // namespace mh
