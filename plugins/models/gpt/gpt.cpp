/// GPT-2 and its relatives: learned positions, LayerNorm, GELU, biases, a tied output layer. With
/// rotary positions, parallel branches and an untied output layer it is GPT-NeoX.

#define MH_PLUGIN_LICENSE "Apache-2.0"
#include <megahost/error.hpp>
#include <megahost/nn/decoder.hpp>
#include <megahost/nn/decoder_hugging_face.hpp>
#include <megahost/plugin.hpp>

namespace {

using mh::HfKey;
using mh::HfTensor;

/// What Hugging Face calls the tensors of a family. Those of a layer come behind `layer` and its
/// number. Weights of linear layers are [in, out] if `transpose`; rows of query, key and value of
/// one head come before those of the next if `by_head`.
struct Family {
  const char *words, *positions, *final_norm, *head;
  const char *layer, *attention_norm, *qkv, *out, *mlp_norm, *up, *down;
  bool transpose, by_head;
};

constexpr Family kGpt2{
    .words = "transformer.wte",
    .positions = "transformer.wpe",
    .final_norm = "transformer.ln_f",
    .head = "lm_head",
    .layer = "transformer.h.",
    .attention_norm = "ln_1",
    .qkv = "attn.c_attn",
    .out = "attn.c_proj",
    .mlp_norm = "ln_2",
    .up = "mlp.c_fc",
    .down = "mlp.c_proj",
    .transpose = true,
    .by_head = false};

/// The first GPT, whose norms come after the sums.
constexpr Family kGpt = [] {
  Family family = kGpt2;
  family.words = "transformer.tokens_embed";
  family.positions = "transformer.positions_embed";
  family.final_norm = nullptr;
  return family;
}();

constexpr Family kNeox{
    .words = "gpt_neox.embed_in",
    .positions = nullptr,
    .final_norm = "gpt_neox.final_layer_norm",
    .head = "embed_out",
    .layer = "gpt_neox.layers.",
    .attention_norm = "input_layernorm",
    .qkv = "attention.query_key_value",
    .out = "attention.dense",
    .mlp_norm = "post_attention_layernorm",
    .up = "mlp.dense_h_to_4h",
    .down = "mlp.dense_4h_to_h",
    .transpose = false,
    .by_head = true};

std::vector<HfKey> gpt_keys(int64_t vocab, int64_t length) {
  return {
      {.key = "vocab_size", .field = "vocab", .absent = vocab},
      {.key = "n_positions",
       .field = "seq_length",
       .absent = length,
       .aliases = {"max_position_embeddings"}},
      {.key = "n_embd", .field = "hidden", .absent = 768, .aliases = {"hidden_size"}},
      {.key = "n_layer", .field = "layers", .absent = 12, .aliases = {"num_hidden_layers"}},
      {.key = "n_head", .field = "heads", .absent = 12, .aliases = {"num_attention_heads"}},
      {.key = "layer_norm_epsilon", .field = "norm_eps", .absent = 1e-5},
      {.key = "tie_word_embeddings", .field = "tied", .absent = true},
  };
}

std::vector<std::string> heads_of_other_tasks() {
  return {
      "n_ctx",
      "n_special",
      "predict_special_tokens",
      "summary_activation",
      "summary_first_dropout",
      "summary_proj_to_labels",
      "summary_type",
      "summary_use_proj"};
}

std::vector<mh::HfWord> activations() {
  return {
      {"gelu_new", "gelu_tanh"},
      {"gelu_pytorch_tanh", "gelu_tanh"},
      {"gelu_fast", "gelu_tanh"},
      {"gelu_accurate", "gelu_tanh"},
      {"gelu", "gelu"},
      {"gelu_python", "gelu"},
      {"relu", "relu"},
      {"relu2", "relu2"}};
}

/// Two rotary keys of GPT-NeoX before transformers 5, and what other models call them.
constexpr std::pair<const char*, const char*> kNeoxRope[] = {
    {"rotary_emb_base", "rope_theta"}, {"rotary_pct", "partial_rotary_factor"}};

constexpr double kNeoxShare = 0.25; // rotated share of a head's elements, where the key is absent

void simplify_neox(mh::Table& config) {
  for (const auto& [theirs, usual] : kNeoxRope) {
    const mh::Value* found = config.find(theirs);
    const mh::Value value = found == nullptr ? mh::Value() : *found;
    config.erase(theirs);
    config.set(usual, value);
  }
  mh::simplify_rope(config);
  const mh::Value* given = config.find("rope_parameters")->find("partial_rotary_factor");
  const bool absent = given == nullptr || given->is_null();
  const double share = absent ? kNeoxShare : given->as_number();
  const mh::Value& heads = *config.find("num_attention_heads");
  if (heads.as_integer() < 1 || share <= 0 || share > 1) {
    return; // the fields' own bounds
  }
  const int64_t dim = config.find("hidden_size")->as_integer() / heads.as_integer();
  const auto rotated = static_cast<int64_t>(static_cast<double>(dim) * share);
  if (rotated % 2 != 0) {
    throw mh::Error(
        (absent ? heads : *given).origin.where() + ": of the " + std::to_string(dim) +
            " elements of a head " + std::to_string(rotated) +
            " are rotated, an odd number, which gpt cannot do",
        "pairs are rotated",
        mh::exit_code::data
    );
  }
}

void restore_neox(mh::Table& config) {
  for (const auto& [theirs, usual] : kNeoxRope) {
    const mh::Value* rope = config.find("rope_parameters");
    const mh::Value* found = rope == nullptr ? nullptr : rope->find(usual);
    if (found != nullptr) {
      const mh::Value value = *found;
      config.set(theirs, value);
    }
  }
}

/// transformers' GPT-NeoX, and with it Pythia.
mh::HfModel neox() {
  const std::vector<HfKey> own{
      {.key = "vocab_size", .field = "vocab", .absent = 50432},
      {.key = "hidden_size", .field = "hidden", .absent = 6144},
      {.key = "intermediate_size", .field = "ffn_hidden", .absent = 24576},
      {.key = "num_hidden_layers", .field = "layers", .absent = 44},
      {.key = "num_attention_heads", .field = "heads", .absent = 64},
      {.key = "hidden_act", .field = "activation", .absent = "gelu", .words = activations()},
      {.key = "max_position_embeddings", .field = "seq_length", .absent = 2048, .compared = false},
      {.key = "layer_norm_eps", .field = "norm_eps", .absent = 1e-5},
      {.key = "tie_word_embeddings", .field = "tied", .absent = false},
      {.key = "use_parallel_residual", .field = "parallel_residual", .absent = true},
      {.key = "attention_bias", .absent = true, .words = {{true}}},
      {.key = "rope_parameters.partial_rotary_factor", .field = "rope_share", .absent = kNeoxShare},
  };
  return {
      .model_type = "gpt_neox",
      .architecture = "GPTNeoXForCausalLM",
      .keys = mh::joined({mh::rope_keys(/*base=*/10000), own}),
      .always = {{"positions", "rope"}},
      .harmless =
          {"attention_probs_dropout_prob",
           "classifier_dropout",
           "hidden_dropout",
           "hidden_dropout_prob"},
      .simplify = simplify_neox,
      .restore = restore_neox};
}

/// transformers' GPT-2, and the first GPT, whose "gelu" is the one by tanh.
std::vector<mh::HfModel> models() {
  const std::vector<HfKey> gpt2{
      {.key = "n_inner", .field = "ffn_hidden"},
      {.key = "activation_function",
       .field = "activation",
       .absent = "gelu_new",
       .words = activations()},
      {.key = "scale_attn_weights", .absent = true, .words = {{true}}},
      {.key = "scale_attn_by_inverse_layer_idx", .absent = false, .words = {{false}}},
  };
  std::vector<std::string> gpt2_harmless = heads_of_other_tasks();
  gpt2_harmless.emplace_back("reorder_and_upcast_attn"); // a matter of rounding
  const std::vector<HfKey> gpt1{
      {.key = "afn", .field = "activation", .absent = "gelu", .words = {{"gelu", "gelu_tanh"}}}};
  return {
      {.model_type = "gpt2",
       .architecture = "GPT2LMHeadModel",
       .keys = mh::joined({gpt_keys(/*vocab=*/50257, /*length=*/1024), gpt2}),
       .harmless = gpt2_harmless},
      {.model_type = "openai-gpt",
       .architecture = "OpenAIGPTLMHeadModel",
       .keys = mh::joined({gpt_keys(/*vocab=*/40478, /*length=*/512), gpt1}),
       .always = {{"norm_placement", "post"}},
       .harmless = heads_of_other_tasks()},
      neox(),
  };
}

class Gpt : public mh::Decoder {
public:
  struct Config : mh::DecoderConfig {};

  static void fields(mh::Fields<Config>& f) { mh::decoder_fields(f); }

  static mh::HfMapping hugging_face_config() {
    return {.models = models(), .free = mh::decoder_free(), .plain = mh::decoder_plain};
  }

  Gpt(const Config& config, const Args& args)
      : Decoder(config, args) {}

  /// `transformers` GPT2LMHeadModel, OpenAIGPTLMHeadModel where norms come after the sums, or
  /// GPTNeoXForCausalLM with rotary positions; query, key and value are in one.
  [[nodiscard]] std::vector<HfTensor> hugging_face() const override {
    const Family* family = counterpart();
    if (family == nullptr) {
      return {};
    }
    std::vector<HfTensor> map;
    const auto add = [&](const std::string& theirs, const std::string& ours, const char* what) {
      map.push_back({theirs + what, {ours + what}});
    };
    const auto norm = [&](const std::string& theirs, const std::string& ours) {
      add(theirs, ours, ".weight");
      add(theirs, ours, ".bias");
    };
    add(family->words, "embedding.word", ".weight");
    if (family->positions != nullptr) {
      add(family->positions, "embedding.position", ".weight");
    }
    if (family->final_norm != nullptr) {
      norm(family->final_norm, "head.norm");
    }
    if (!config().tied) {
      add(family->head, "head", ".weight");
    }
    for (int64_t i = 0; i < layers(); ++i) {
      const std::string ours = "layers." + std::to_string(i) + ".";
      const std::string theirs = family->layer + std::to_string(i) + ".";
      const auto linear =
          [&](const char* name, const std::vector<std::string>& pieces, int64_t groups = 1) {
            HfTensor weight{theirs + name + ".weight", {}, family->transpose, {}, groups};
            HfTensor bias{theirs + name + ".bias", {}, /*transpose=*/false, {}, groups};
            for (const auto& piece : pieces) {
              weight.ours.push_back(ours + piece + ".weight");
              bias.ours.push_back(ours + piece + ".bias");
            }
            map.push_back(weight);
            map.push_back(bias);
          };
      norm(theirs + family->attention_norm, ours + "attention_norm");
      norm(theirs + family->mlp_norm, ours + "mlp_norm");
      linear(
          family->qkv,
          {"attention.q", "attention.k", "attention.v"},
          family->by_head ? config().heads : 1
      );
      linear(family->out, {"attention.out"});
      linear(family->up, {"mlp.up"});
      linear(family->down, {"mlp.down"});
    }
    return map;
  }

  [[nodiscard]] std::vector<HfTensor> megatron() const override {
    return mh::megatron_names(config());
  }

private:
  /// The family that has these fields, or null.
  [[nodiscard]] const Family* counterpart() const {
    const auto& c = config();
    const bool post = c.norm_placement == "post", pre = c.norm_placement == "pre";
    if (c.norm != "layernorm" || !(pre || post) || !c.bias || !*c.qkv_bias || c.qk_norm ||
        c.scaled_embedding || c.score_dim || mh::is_gated(mh::activation_kind(c.activation))) {
      return nullptr;
    }
    if (c.positions == "learned") {
      return post ? &kGpt : &kGpt2;
    }
    return c.positions == "rope" && !post && *c.kv_heads == c.heads ? &kNeox : nullptr;
  }
};

} // namespace

MH_PLUGIN("org.megahost.gpt", "0.1.0", "GPT decoder models", [](mh::Registry& registry) {
  registry.add<Gpt>(
      "gpt", "decoder with learned positions, LayerNorm, GELU and a tied output layer"
  );
});
