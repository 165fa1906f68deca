// The Hugging Face names of what llama and its relatives have in common.

#include "megahost/nn/decoder.hpp"

namespace mh {

void add_feed_forward_names(
    const DecoderConfig& c,
    const std::string& theirs,
    const std::string& ours,
    std::vector<HfTensor>& map
) {
  const auto add = [&](const std::string& part) {
    map.push_back({theirs + part + "_proj.weight", {ours + part + ".weight"}});
    if (c.bias) {
      map.push_back({theirs + part + "_proj.bias", {ours + part + ".bias"}});
    }
  };
  if (is_gated(activation_kind(c.activation))) {
    add("gate");
  }
  add("up");
  add("down");
}

std::vector<HfTensor> llama_names(const DecoderConfig& c, const FeedForwardNames& feed_forward) {
  if (c.norm_placement == "post" || c.positions == "learned") {
    return {};
  }
  const bool norm_bias = info(norm_kind(c.norm)).bias;
  std::vector<HfTensor> map = {
      {"model.embed_tokens.weight", {"embedding.word.weight"}},
      {"model.norm.weight", {"head.norm.weight"}}};
  if (norm_bias) {
    map.push_back({"model.norm.bias", {"head.norm.bias"}});
  }
  if (!c.tied) {
    map.push_back({"lm_head.weight", {"head.weight"}});
  }
  if (c.head_bias) {
    map.push_back({"lm_head.bias", {"head.bias"}});
  }
  const bool branch = c.norm_placement == "branch", sandwich = c.norm_placement == "sandwich";
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string ours = "layers." + std::to_string(i) + ".";
    const std::string theirs = "model.layers." + std::to_string(i) + ".";
    const auto add = [&](const std::string& name, const std::string& piece, bool bias) {
      map.push_back({theirs + name + ".weight", {ours + piece + ".weight"}});
      if (bias) {
        map.push_back({theirs + name + ".bias", {ours + piece + ".bias"}});
      }
    };
    add(branch ? "post_attention_layernorm" : "input_layernorm", "attention_norm", norm_bias);
    if (sandwich) {
      add("post_attention_layernorm", "attention_out_norm", norm_bias);
      add("pre_feedforward_layernorm", "mlp_norm", norm_bias);
      add("post_feedforward_layernorm", "mlp_out_norm", norm_bias);
    } else if (!c.shared_norm) {
      add(branch ? "post_feedforward_layernorm" : "post_attention_layernorm", "mlp_norm", norm_bias
      );
    }
    const bool qkv_bias = c.qkv_bias.value_or(c.bias);
    if (c.kv_rank) {
      add(c.q_rank ? "self_attn.q_b_proj" : "self_attn.q_proj",
          c.q_rank ? "attention.q_up" : "attention.q",
          false);
      if (c.q_rank) {
        add("self_attn.q_a_proj", "attention.q_down", false);
        add("self_attn.q_a_layernorm", "attention.q_norm", false);
      }
      map.push_back(
          {theirs + "self_attn.kv_a_proj_with_mqa.weight",
           {ours + "attention.kv_down.weight", ours + "attention.k_rope.weight"}}
      );
      add("self_attn.kv_a_layernorm", "attention.kv_norm", false);
      add("self_attn.kv_b_proj", "attention.kv_up", false);
    } else {
      add("self_attn.q_proj", "attention.q", qkv_bias);
      add("self_attn.k_proj", "attention.k", qkv_bias);
      add("self_attn.v_proj", "attention.v", qkv_bias);
    }
    add("self_attn.o_proj", "attention.out", c.bias);
    if (c.qk_norm) {
      add("self_attn.q_norm", "attention.q_norm", false);
      add("self_attn.k_norm", "attention.k_norm", false);
    }
    if (feed_forward) {
      feed_forward(i, theirs, ours, map);
    } else {
      add_feed_forward_names(c, theirs + "mlp.", ours + "mlp.", map);
    }
  }
  return map;
}

} // namespace mh
