// The names that other programs have for what decoders have in common: Hugging Face's Llama and its
// relatives, and Megatron-LM.

#include "megahost/nn/decoder.hpp"

#include <string_view>
#include <utility>

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

namespace {

/// A tensor of theirs that repeats one that the map has already.
void add_repeated(std::vector<HfTensor>& map, std::string theirs, const char* ours) {
  HfTensor tensor{.theirs = std::move(theirs), .ours = {ours}};
  tensor.repeats = true;
  map.push_back(std::move(tensor));
}

} // namespace

std::vector<HfTensor>
llama_names(const DecoderConfig& c, const FeedForwardNames& feed_forward, bool predicts_further) {
  if (c.norm_placement == "post" || (c.positions != "rope" && c.positions != "none")) {
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
  const auto add_layer = [&](int64_t i, const std::string& theirs, const std::string& ours) {
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
      for (const char* what : {".weight", ".bias"}) { // each head's query, and its gate behind it
        HfTensor queries{.theirs = theirs + "self_attn.q_proj" + what, .ours = {}};
        queries.ours.push_back(ours + "attention.q" + what);
        if (c.attention_gate) {
          queries.ours.push_back(ours + "attention.gate" + what);
          queries.groups = c.heads;
        }
        if (qkv_bias || std::string_view(what) == ".weight") {
          map.push_back(std::move(queries));
        }
      }
      add("self_attn.k_proj", "attention.k", qkv_bias);
      add("self_attn.v_proj", "attention.v", qkv_bias);
    }
    add("self_attn.o_proj", "attention.out", c.bias);
    if (c.sinks) {
      map.push_back({theirs + "self_attn.sinks", {ours + "attention.sinks"}});
    }
    if (c.qk_norm) {
      const bool bias = info(norm_kind(decoder_detail::qk_norm_kind(c))).bias;
      add("self_attn.q_norm", "attention.q_norm", bias);
      add("self_attn.k_norm", "attention.k_norm", bias);
    }
    if (feed_forward) {
      feed_forward(i, theirs, ours, map);
    } else {
      add_feed_forward_names(c, theirs + "mlp.", ours + "mlp.", map);
    }
  };
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string number = std::to_string(i) + ".";
    add_layer(i, "model.layers." + number, "layers." + number);
  }
  for (int64_t k = 0; predicts_further && k < c.mtp_layers; ++k) {
    const std::string ours = "head.mtp." + std::to_string(k) + ".";
    const std::string theirs = "model.layers." + std::to_string(c.layers + k) + ".";
    for (const auto& [name, piece] :
         {std::pair("enorm", "embedding_norm"),
          std::pair("hnorm", "hidden_norm"),
          std::pair("eh_proj", "projection"),
          std::pair("shared_head.norm", "norm")}) {
      const std::string weight = ".weight";
      map.push_back({theirs + name + weight, {ours + piece + weight}});
    }
    add_repeated(map, theirs + "embed_tokens.weight", "embedding.word.weight");
    add_repeated(
        map, theirs + "shared_head.head.weight", c.tied ? "embedding.word.weight" : "head.weight"
    );
    add_layer(c.layers - 1, theirs, ours + "layer.");
  }
  return map;
}

void add_megatron_feed_forward(
    const DecoderConfig& c,
    const std::string& theirs,
    const std::string& ours,
    std::vector<HfTensor>& map
) {
  for (const char* what : {"weight", "bias"}) {
    if (std::string_view(what) == "bias" && !c.bias) {
      continue;
    }
    std::vector<std::string> up{ours + "up." + what};
    if (is_gated(activation_kind(c.activation))) {
      up.insert(up.begin(), ours + "gate." + what);
    }
    map.push_back({theirs + "linear_fc1." + what, up});
    map.push_back({theirs + "linear_fc2." + what, {ours + "down." + what}});
  }
}

namespace {

bool is_of_megatron(const DecoderConfig& c) {
  return c.norm_placement == "pre" && !c.parallel_residual && !c.scaled_embedding && !c.score_dim &&
         !c.score_cap && !c.sinks && !c.attention_gate && !c.logit_cap && c.logit_scale == 1 &&
         !c.head_bias && c.rope_pairs == "halves" && c.rope_scaling != "longrope" &&
         (c.positions == "learned" || c.positions == "rope" || c.positions == "none") &&
         !(c.qk_norm && (c.qk_norm_over != "head" || decoder_detail::qk_norm_kind(c) != c.norm)) &&
         c.causal && (c.norm == "layernorm" || c.norm == "rmsnorm");
}

} // namespace

std::vector<HfTensor> megatron_names(const DecoderConfig& c, const FeedForwardNames& feed_forward) {
  if (!is_of_megatron(c)) {
    return {};
  }
  const bool norm_bias = info(norm_kind(c.norm)).bias;
  std::vector<HfTensor> map;
  const auto add = [&](const std::string& theirs, const std::string& ours, bool bias) {
    map.push_back({theirs + ".weight", {ours + ".weight"}});
    if (bias) {
      map.push_back({theirs + ".bias", {ours + ".bias"}});
    }
  };
  const auto add_vocab = [&](const char* theirs, const char* ours) {
    map.push_back({.theirs = theirs, .ours = {ours}, .padded = true});
  };
  add_vocab("embedding.word_embeddings.weight", "embedding.word.weight");
  if (c.positions == "learned") {
    add("embedding.position_embeddings", "embedding.position", false);
  }
  add("decoder.final_layernorm", "head.norm", norm_bias);
  if (!c.tied) {
    add_vocab("output_layer.weight", "head.weight");
  }
  const int64_t groups = c.kv_heads.value_or(c.heads);
  const auto add_latent = [&](const std::string& theirs, const std::string& ours) {
    if (c.q_rank) {
      add(theirs + "linear_q_down_proj", ours + "q_down", false);
      add(theirs + "q_layernorm", ours + "q_norm", false);
    }
    add(theirs + (c.q_rank ? "linear_q_up_proj" : "linear_q_proj"),
        ours + (c.q_rank ? "q_up" : "q"),
        false);
    map.push_back(
        {theirs + "linear_kv_down_proj.weight", {ours + "kv_down.weight", ours + "k_rope.weight"}}
    );
    add(theirs + "kv_layernorm", ours + "kv_norm", false);
    add(theirs + "linear_kv_up_proj", ours + "kv_up", false);
  };
  const auto add_layer = [&](int64_t i, const std::string& theirs, const std::string& ours) {
    add(theirs + "input_layernorm", ours + "attention_norm", norm_bias);
    add(theirs + "pre_mlp_layernorm", ours + "mlp_norm", norm_bias);
    if (c.kv_rank) {
      add_latent(theirs + "self_attention.", ours + "attention.");
    }
    for (const char* what : {"weight", "bias"}) {
      if (!c.kv_rank && (std::string_view(what) == "weight" || c.qkv_bias.value_or(c.bias))) {
        HfTensor qkv{.theirs = theirs + "self_attention.linear_qkv." + what, .ours = {}};
        for (const char* part : {"q.", "k.", "v."}) {
          qkv.ours.push_back(ours + "attention." + part + what);
        }
        qkv.groups = groups; // the queries of a group, its key, its value; then those of the next
        map.push_back(std::move(qkv));
      }
    }
    add(theirs + "self_attention.linear_proj", ours + "attention.out", c.bias);
    if (c.qk_norm) {
      add(theirs + "self_attention.q_layernorm", ours + "attention.q_norm", norm_bias);
      add(theirs + "self_attention.k_layernorm", ours + "attention.k_norm", norm_bias);
    }
    if (feed_forward) {
      feed_forward(i, theirs, ours, map);
    } else {
      add_megatron_feed_forward(c, theirs + "mlp.", ours + "mlp.", map);
    }
  };
  for (int64_t i = 0; i < c.layers; ++i) {
    add_layer(i, "decoder.layers." + std::to_string(i) + ".", "layers." + std::to_string(i) + ".");
  }
  for (int64_t k = 0; k < c.mtp_layers; ++k) {
    const std::string ours = "head.mtp." + std::to_string(k) + ".";
    const std::string theirs = "mtp.layers." + std::to_string(k) + ".";
    add(theirs + "enorm", ours + "embedding_norm", norm_bias);
    add(theirs + "hnorm", ours + "hidden_norm", norm_bias);
    add(theirs + "eh_proj", ours + "projection", false);
    add(theirs + "final_layernorm", ours + "norm", norm_bias);
    add_layer(c.layers - 1, theirs + "transformer_layer.", ours + "layer.");
  }
  return map;
}

} // namespace mh
