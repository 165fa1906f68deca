#include "t5.hpp"

#include <megahost/nn/decoder.hpp>

#include <algorithm>
#include <string>
#include <utility>

namespace mh::t5 {
namespace {

/// Fills in absent keys as transformers does: the decoder is as deep as the encoder, and the head
/// is scaled if it is tied.
void simplify(Table& config) {
  const auto fill = [&config](const char* key, const char* other) {
    const Value* found = config.find(key);
    if (found == nullptr || found->is_null()) {
      config.set(key, *config.find(other));
    }
  };
  fill("num_decoder_layers", "num_layers");
  fill("scale_decoder_outputs", "tie_word_embeddings");
}

/// Fills in absent fields.
void plain(Table& f) {
  const auto fill = [&f](const char* field, const Value& value) {
    const Value* found = f.find(field);
    if (found == nullptr || found->is_null()) {
      f.set(field, value);
    }
  };
  const int64_t hidden = f.find("hidden")->as_integer();
  const auto heads = f.find("heads")->as_integer();
  fill("head_dim", hidden / std::max<int64_t>(heads, 1));
  fill("ffn_hidden", decoder_detail::default_ffn_hidden(hidden, f.find("activation")->as_string()));
  if (*f.find("positions") != Value("rope")) {
    f.erase("rope_base");
  }
  fill("head_scale", *f.find("tied") == Value(true) && *f.find("positions") == Value("relative"));
}

} // namespace

HfMapping hugging_face_mapping() {
  return {
      .models =
          {{.model_type = "t5",
            .architecture = "T5ForConditionalGeneration",
            .keys =
                {{.key = "vocab_size", .field = "vocab", .absent = 32128},
                 {.key = "d_model", .field = "hidden", .absent = 512, .aliases = {"hidden_size"}},
                 {.key = "num_layers",
                  .field = "encoder_layers",
                  .absent = 6,
                  .aliases = {"num_hidden_layers"}},
                 {.key = "num_decoder_layers", .field = "layers"},
                 {.key = "num_heads",
                  .field = "heads",
                  .absent = 8,
                  .aliases = {"num_attention_heads"}},
                 {.key = "d_kv", .field = "head_dim", .absent = 64, .aliases = {"head_dim"}},
                 {.key = "d_ff", .field = "ffn_hidden", .absent = 2048},
                 {.key = "feed_forward_proj",
                  .field = "activation",
                  .absent = "relu",
                  .words =
                      {{"relu", "relu"},
                       {"gelu", "gelu"},
                       {"gelu_new", "gelu_tanh"},
                       {"gated-gelu", "geglu_tanh"},
                       {"gated-gelu_new", "geglu_tanh"},
                       {"gated-silu", "swiglu"}}},
                 {.key = "relative_attention_num_buckets", .field = "buckets", .absent = 32},
                 {.key = "relative_attention_max_distance", .field = "max_distance", .absent = 128},
                 {.key = "layer_norm_epsilon", .field = "norm_eps", .absent = 1e-6},
                 {.key = "tie_word_embeddings", .field = "tied", .absent = true},
                 {.key = "scale_decoder_outputs", .field = "head_scale"},
                 only_value("is_encoder_decoder", true),
                 {.key = "n_positions",
                  .field = "encoder_length",
                  .absent = 512,
                  .compared = false}},
            .always = {{"norm", "rmsnorm"}, {"positions", "relative"}, {"bias", false}},
            .harmless =
                {"classifier_dropout",
                 "dense_act_fn",
                 "dropout_rate",
                 "initializer_factor",
                 "is_gated_act",
                 "output_past"},
            .simplify = simplify,
            // Its absence says it, too, but not to whoever reads the file alone.
            .restore = [](Table& config) { config.set("is_encoder_decoder", true); }}},
      .free = {"dropout", "attention_dropout", "init_std", "scaled_init", "encoder_length"},
      .plain = plain};
}

std::vector<HfTensor> hugging_face_names(const T5Config& c) {
  if (c.norm != "rmsnorm" || !c.relative() || c.bias) {
    return {};
  }
  const bool gated = is_gated(activation_kind(c.activation));
  std::vector<HfTensor> map{
      {"shared.weight", {"embedding.word.weight"}},
      {"decoder.final_layer_norm.weight", {"head.norm.weight"}}};
  if (!c.tied) {
    map.push_back({"lm_head.weight", {"head.weight"}});
  }
  for (int64_t i = 0; i < c.encoder_layers + c.layers; ++i) {
    const bool decodes = i >= c.encoder_layers;
    const int64_t number = decodes ? i - c.encoder_layers : i;
    const std::string stack = decodes ? "decoder." : "encoder.";
    const std::string ours = "layers." + std::to_string(i) + ".";
    const std::string block = stack + "block." + std::to_string(number) + ".layer.";
    const auto add = [&](int part, const std::string& theirs, const std::string& name) {
      map.push_back(
          {block + std::to_string(part) + "." + theirs + ".weight", {ours + name + ".weight"}}
      );
    };
    const auto add_attention = [&](int part, const std::string& theirs, const std::string& name) {
      add(part, "layer_norm", name + "_norm");
      for (const char* projection : {"q", "k", "v"}) {
        add(part, theirs + "." + projection, name + "." + projection);
      }
      add(part, theirs + ".o", name + ".out");
    };
    add_attention(0, "SelfAttention", "attention");
    if (number == 0) {
      map.push_back(
          {block + "0.SelfAttention.relative_attention_bias.weight",
           {ours + "attention.relative_bias.weight"},
           /*transpose=*/true}
      );
      if (decodes) {
        map.push_back({"encoder.final_layer_norm.weight", {ours + "memory_norm.weight"}});
      }
    }
    if (decodes) {
      add_attention(1, "EncDecAttention", "cross_attention");
    }
    const int last = decodes ? 2 : 1;
    add(last, "layer_norm", "mlp_norm");
    if (gated) {
      add(last, "DenseReluDense.wi_0", "mlp.gate");
      add(last, "DenseReluDense.wi_1", "mlp.up");
    } else {
      add(last, "DenseReluDense.wi", "mlp.up");
    }
    add(last, "DenseReluDense.wo", "mlp.down");
  }
  return map;
}

} // namespace mh::t5
