/// Phi 3 and 4: Llama, whose files hold query, key and value as one tensor, and gate and up as one.

#define MH_PLUGIN_LICENSE "Apache-2.0"
#include <megahost/error.hpp>
#include <megahost/nn/decoder.hpp>
#include <megahost/nn/decoder_hugging_face.hpp>
#include <megahost/plugin.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace {

using mh::Table;
using mh::Value;

/// Llama's names, but that some of its tensors lie behind one another in one.
std::vector<mh::HfTensor> packed_names(const std::vector<mh::HfTensor>& llama) {
  static const std::vector<std::pair<std::string, std::string>> kPacked{
      {".q_proj.", ".qkv_proj."},
      {".k_proj.", ".qkv_proj."},
      {".v_proj.", ".qkv_proj."},
      {".gate_proj.", ".gate_up_proj."},
      {".up_proj.", ".gate_up_proj."}};
  std::vector<mh::HfTensor> map;
  for (mh::HfTensor tensor : llama) {
    for (const auto& [theirs, packed] : kPacked) {
      if (const size_t at = tensor.theirs.find(theirs); at != std::string::npos) {
        tensor.theirs.replace(at, theirs.size(), packed);
      }
    }
    const auto same = std::find_if(map.begin(), map.end(), [&](const mh::HfTensor& other) {
      return other.theirs == tensor.theirs;
    });
    if (same == map.end()) {
      map.push_back(std::move(tensor));
    } else {
      same->ours.insert(same->ours.end(), tensor.ours.begin(), tensor.ours.end());
    }
  }
  return map;
}

/// longrope has a factor of each wavelength, which are others beyond the first length.
void refuse_longrope(const Table& config) {
  const Value* rope = config.find("rope_parameters");
  const Value* type = rope != nullptr && rope->is_table() ? rope->find("rope_type") : nullptr;
  if (type != nullptr && !(*type == Value("default"))) {
    throw mh::Error(
        type->origin.where() + ": rope_type is " + to_text(*type) +
            ", whose factors of each wavelength (short_factor and long_factor) phi3 does not have",
        "take a model whose context is the one that it began with: phi-3-mini-4k, "
        "phi-3-medium-4k, phi-4",
        mh::exit_code::data
    );
  }
}

void simplify(Table& config) {
  const Value* scaling = config.find("rope_scaling");
  if (scaling != nullptr && scaling->is_table()) { // version 4, where "type" may be the key
    Table rope = scaling->as_table();
    if (rope.find("rope_type") == nullptr) {
      rope.set("rope_type", rope.take("type"));
    }
    refuse_longrope(Table{{"rope_parameters", Value(rope)}});
  }
  refuse_longrope(config);
  mh::simplify_rope(config);
}

std::vector<mh::HfModel> models() {
  auto keys = mh::joined(
      {mh::llama_keys(
           {.vocab = 32064,
            .hidden = 3072,
            .ffn_hidden = 8192,
            .layers = 32,
            .heads = 32,
            .norm_eps = 1e-5,
            .length = 4096}
       ),
       {{.key = "rope_parameters.partial_rotary_factor", .field = "rope_share", .absent = 1},
        {.key = "sliding_window", .field = "window"},
        {.key = "attention_bias", .absent = false, .words = {{false}}}}}
  );
  return {
      {.model_type = "phi3",
       .architecture = "Phi3ForCausalLM",
       .keys = std::move(keys),
       .harmless = {"original_max_position_embeddings"}, // longrope's
       .simplify = simplify}};
}

class Phi3 : public mh::Decoder {
public:
  struct Config : mh::DecoderConfig {
    Config() {
      norm = "rmsnorm";
      activation = "swiglu";
      positions = "rope";
      bias = false;
      tied = false;
    }
  };

  static void fields(mh::Fields<Config>& f) { mh::decoder_fields(f); }

  static mh::HfMapping hugging_face_config() {
    return {.models = models(), .free = mh::decoder_free(), .plain = mh::decoder_plain};
  }

  Phi3(const Config& config, const Args& args)
      : Decoder(config, args) {}

  /// `transformers` Phi3ForCausalLM.
  [[nodiscard]] std::vector<mh::HfTensor> hugging_face() const override {
    const bool latent = config().kv_rank.has_value() || config().attention_gate;
    return latent ? std::vector<mh::HfTensor>() : packed_names(mh::llama_names(config()));
  }

  [[nodiscard]] std::vector<mh::HfTensor> megatron() const override {
    return mh::megatron_names(config());
  }
};

} // namespace

MH_PLUGIN("org.megahost.phi3", "0.1.0", "Phi 3 and 4 decoder models", [](mh::Registry& registry) {
  registry.add<Phi3>("phi3", "Llama with packed tensors in its files: Phi 3 and Phi 4");
});
