// How GPT and its relatives say the same in config.json.

#include "hugging_face.hpp"

#include <megahost/error.hpp>
#include <megahost/nn/decoder_hugging_face.hpp>

#include <string>
#include <utility>
#include <vector>

namespace mh::gpt {
namespace {

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

std::vector<HfWord> activations() {
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

// Rotated share of a head's elements, where the key is absent.
constexpr double kNeoxShare = 0.25, kPhiShare = 0.5;

/// Refuses an odd number of rotated elements; `otherwise` is the share where the key is absent.
void require_pairs(const Table& config, double otherwise) {
  const Value* given = config.find("rope_parameters")->find("partial_rotary_factor");
  const bool absent = given == nullptr || given->is_null();
  const double share = absent ? otherwise : given->as_number();
  const Value& heads = *config.find("num_attention_heads");
  if (heads.as_integer() < 1 || share <= 0 || share > 1) {
    return; // the fields' own bounds
  }
  const int64_t dim = config.find("hidden_size")->as_integer() / heads.as_integer();
  const auto rotated = static_cast<int64_t>(static_cast<double>(dim) * share);
  if (rotated % 2 != 0) {
    throw Error(
        (absent ? heads : *given).origin.where() + ": of the " + std::to_string(dim) +
            " elements of a head " + std::to_string(rotated) +
            " are rotated, an odd number, which gpt cannot do",
        "pairs are rotated",
        exit_code::data
    );
  }
}

void simplify_neox(Table& config) {
  for (const auto& [theirs, usual] : kNeoxRope) {
    config.set(usual, config.take(theirs));
  }
  simplify_rope(config);
  require_pairs(config, kNeoxShare);
}

void restore_neox(Table& config) {
  for (const auto& [theirs, usual] : kNeoxRope) {
    const Value* rope = config.find("rope_parameters");
    const Value* found = rope == nullptr ? nullptr : rope->find(usual);
    if (found != nullptr) {
      const Value value = *found;
      config.set(theirs, value);
    }
  }
}

/// transformers' GPT-NeoX, and with it Pythia.
HfModel neox() {
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
      only_value("attention_bias", true),
      {.key = "rope_parameters.partial_rotary_factor", .field = "rope_share", .absent = kNeoxShare},
  };
  return {
      .model_type = "gpt_neox",
      .architecture = "GPTNeoXForCausalLM",
      .keys = joined({rope_keys(/*base=*/10000), own}),
      .always = {{"positions", "rope"}},
      .harmless =
          {"attention_probs_dropout_prob",
           "classifier_dropout",
           "hidden_dropout",
           "hidden_dropout_prob"},
      .simplify = simplify_neox,
      .restore = restore_neox};
}

/// transformers' Phi: Phi-1, 1.5 and 2.
HfModel phi() {
  const std::vector<HfKey> own{
      {.key = "vocab_size", .field = "vocab", .absent = 51200},
      {.key = "hidden_size", .field = "hidden", .absent = 2048},
      {.key = "intermediate_size", .field = "ffn_hidden", .absent = 8192},
      {.key = "num_hidden_layers", .field = "layers", .absent = 24},
      {.key = "num_attention_heads", .field = "heads", .absent = 32},
      {.key = "num_key_value_heads", .field = "kv_heads"},
      {.key = "hidden_act", .field = "activation", .absent = "gelu_new", .words = activations()},
      {.key = "max_position_embeddings", .field = "seq_length", .absent = 2048, .compared = false},
      {.key = "layer_norm_eps", .field = "norm_eps", .absent = 1e-5},
      {.key = "tie_word_embeddings", .field = "tied", .absent = false},
      only_value("qk_layernorm", false),
      {.key = "rope_parameters.partial_rotary_factor", .field = "rope_share", .absent = kPhiShare},
  };
  return {
      .model_type = "phi",
      .architecture = "PhiForCausalLM",
      .keys = joined({rope_keys(/*base=*/10000), own}),
      .always =
          {{"positions", "rope"},
           {"parallel_residual", true},
           {"shared_norm", true},
           {"head_bias", true}},
      .simplify = [](Table& config) {
        simplify_rope(config);
        require_pairs(config, kPhiShare);
      }};
}

// Keys by which transformers' Falcon has three kinds of key heads and of norms.
constexpr auto kRenewed = "new_decoder_architecture";
constexpr auto kMultiQuery = "multi_query";
constexpr auto kParallel = "parallel_attn";
constexpr auto kNormCount = "num_ln_in_parallel_attn";
constexpr auto kKeyHeads = "num_kv_heads";

/// Python's truth of a key that may be null.
bool is_true(const Table& config, const char* key) {
  const Value& value = *config.find(key);
  return !value.is_null() && value.as_boolean();
}

[[noreturn]] void refuse_falcon(const Value& at, const std::string& what, const char* hint) {
  throw Error(at.origin.where() + ": " + what, hint, exit_code::data);
}

/// kKeyHeads becomes the number of key heads, kNormCount that of the norms of a block's parts, whatever
/// the other keys make of them. As many key heads as heads, a norm for each part and biases are a
/// GPT-NeoX, whose names the tensors of such a model have here.
void simplify_falcon(Table& config) {
  simplify_rope(config);
  const bool renewed = is_true(config, kRenewed), parallel = is_true(config, kParallel);
  const Value heads = *config.find("num_attention_heads");
  const Value norms = *config.find(kNormCount);
  if (renewed && !parallel) {
    refuse_falcon(
        *config.find(kParallel),
        "the new decoder architecture has parallel branches, but parallel_attn is false",
        "set parallel_attn to true, or new_decoder_architecture to false"
    );
  }
  Value count = !parallel ? Value(2) : norms;
  if (count.is_null()) {
    count = renewed ? 2 : 1;
  }
  if (parallel && !renewed && count == Value(2)) {
    refuse_falcon(
        norms,
        "two norms of parallel branches are those of the new decoder architecture, but "
        "new_decoder_architecture is false",
        "leave num_ln_in_parallel_attn out, or set new_decoder_architecture to true"
    );
  }
  Value key_heads = renewed ? *config.find(kKeyHeads) : heads;
  if (!renewed && is_true(config, kMultiQuery)) {
    key_heads = 1;
    key_heads.origin = config.find(kMultiQuery)->origin;
  } else if (key_heads.is_null()) {
    key_heads = heads;
  }
  const bool rotates = !is_true(config, "alibi"); // no GPT-NeoX has ALiBi
  if (rotates && is_true(config, "bias") && count == Value(2) && key_heads == heads) {
    refuse_falcon(
        *config.find("bias"),
        "a falcon with biases, a norm for each part and as many key heads as heads is a gpt_neox",
        "call its tensors as transformers' GPTNeoXForCausalLM does"
    );
  }
  config.set(kParallel, parallel);
  config.set(kNormCount, count);
  config.set(kKeyHeads, key_heads);
}

void restore_falcon(Table& config) {
  const Value heads = *config.find("num_attention_heads");
  const Value found = *config.find(kKeyHeads);
  const Value key_heads = found.is_null() ? heads : found;
  const bool parallel = is_true(config, kParallel);
  const bool old_heads = key_heads == Value(1) || key_heads == heads;
  const bool renewed = parallel && (!old_heads || *config.find(kNormCount) == Value(2));
  if (!parallel && !old_heads) {
    throw Error(
        "a falcon whose parts run one after the other has one key head or as many as heads, not " +
            to_text(key_heads),
        "set model.parallel_residual = true"
    );
  }
  config.set(kRenewed, renewed);
  config.set(kMultiQuery, key_heads == Value(1));
  if (!renewed) {
    config.erase(kNormCount);
    config.erase(kKeyHeads);
  }
}

/// transformers' Falcon: 7B, 40B and 180B, the 11B of version 2, and those with ALiBi (RW).
HfModel falcon() {
  const auto read_with_others = [](const char* key, bool absent) {
    return HfKey{.key = key, .absent = absent, .words = {{absent}, {!absent}}};
  };
  const std::vector<HfKey> own{
      {.key = "vocab_size", .field = "vocab", .absent = 65024},
      {.key = "hidden_size", .field = "hidden", .absent = 4544, .aliases = {"n_embed"}},
      {.key = "ffn_hidden_size", .field = "ffn_hidden"},
      {.key = "num_hidden_layers", .field = "layers", .absent = 32},
      {.key = "num_attention_heads", .field = "heads", .absent = 71},
      {.key = kKeyHeads, .field = "kv_heads"},
      {.key = "activation", .field = "activation", .absent = "gelu", .words = activations()},
      {.key = "bias", .field = "bias", .absent = false},
      {.key = "max_position_embeddings", .field = "seq_length", .absent = 2048, .compared = false},
      {.key = "layer_norm_epsilon", .field = "norm_eps", .absent = 1e-5},
      {.key = "tie_word_embeddings", .field = "tied", .absent = true},
      {.key = kParallel, .field = "parallel_residual", .absent = true},
      {.key = kNormCount, .field = "shared_norm", .words = {{1, true}, {2, false}}},
      read_with_others(kRenewed, false),
      read_with_others(kMultiQuery, true),
      {.key = "alibi",
       .field = "positions",
       .absent = false,
       .words = {{false, "rope"}, {true, "alibi_scaled"}}},
      only_value("apply_residual_connection_post_layernorm", false),
  };
  return {
      .model_type = "falcon",
      .architecture = "FalconForCausalLM",
      .keys = joined({rope_keys(/*base=*/10000), own}),
      .harmless = {"hidden_dropout"},
      .simplify = simplify_falcon,
      .restore = restore_falcon};
}

/// transformers' GPT-2, and the first GPT, whose "gelu" is the one by tanh.
std::vector<HfModel> models() {
  const std::vector<HfKey> gpt2{
      {.key = "n_inner", .field = "ffn_hidden"},
      {.key = "activation_function",
       .field = "activation",
       .absent = "gelu_new",
       .words = activations()},
      only_value("scale_attn_weights", true),
      only_value("scale_attn_by_inverse_layer_idx", false),
  };
  std::vector<std::string> gpt2_harmless = heads_of_other_tasks();
  gpt2_harmless.emplace_back("reorder_and_upcast_attn"); // a matter of rounding
  const std::vector<HfKey> gpt1{
      {.key = "afn", .field = "activation", .absent = "gelu", .words = {{"gelu", "gelu_tanh"}}}};
  return {
      {.model_type = "gpt2",
       .architecture = "GPT2LMHeadModel",
       .keys = joined({gpt_keys(/*vocab=*/50257, /*length=*/1024), gpt2}),
       .harmless = gpt2_harmless},
      {.model_type = "openai-gpt",
       .architecture = "OpenAIGPTLMHeadModel",
       .keys = joined({gpt_keys(/*vocab=*/40478, /*length=*/512), gpt1}),
       .always = {{"norm_placement", "post"}},
       .harmless = heads_of_other_tasks()},
      neox(),
      phi(),
      falcon(),
  };
}

} // namespace

HfMapping hugging_face_mapping() {
  return {.models = models(), .free = decoder_free(), .plain = decoder_plain};
}

} // namespace mh::gpt
