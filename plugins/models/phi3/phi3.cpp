/// Phi 3 and 4: Llama, whose files hold query, key and value as one tensor, and gate and up as one;
/// those of long contexts have a factor of each rotary wavelength (longrope).

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

constexpr auto kFirstLength = "original_max_position_embeddings";

/// The first names of longrope, of which the second was once another scaling.
bool is_longrope(const Value& type) {
  return type == Value("longrope") || type == Value("su") || type == Value("yarn");
}

/// The first length of longrope lies outside of its other numbers; the longest is `factor` times that.
void simplify(Table& config) {
  Value first = config.take(kFirstLength);
  for (const char* holder : {"rope_scaling", "rope_parameters"}) { // transformers 4, and 5
    Value* found = config.find(holder);
    if (found == nullptr || !found->is_table()) {
      continue;
    }
    Table& rope = found->as_table();
    Value type = rope.take("rope_type");
    const Value old = rope.take("type");
    type = type.is_null() ? old : type;
    if (is_longrope(type)) {
      const mh::Origin origin = type.origin;
      type = "longrope";
      type.origin = origin;
      first = first.is_null() ? Value(4096) : first;
      rope.set(kFirstLength, first);
      const Value* factor = rope.find("factor");
      if (factor == nullptr || factor->is_null()) {
        const Value& longest = *config.find("max_position_embeddings");
        Value ratio = std::max(1.0, longest.as_number() / first.as_number());
        ratio.origin = longest.origin;
        rope.set("factor", ratio);
      }
    }
    if (!type.is_null()) {
      rope.set("rope_type", type);
    }
  }
  mh::simplify_rope(config);
}

void restore(Table& config) {
  const Value* rope = config.find("rope_parameters");
  const Value* first = rope == nullptr ? nullptr : rope->find(kFirstLength);
  if (first != nullptr && *rope->find("rope_type") == Value("longrope")) {
    const Value length = *first;
    config.set(kFirstLength, length); // which transformers takes before the other
  }
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
        {.key = "rope_parameters.rope_type",
         .field = "rope_scaling",
         .absent = "default",
         .words = {{"default", "none"}, {"longrope", "longrope"}}},
        {.key = "rope_parameters.short_factor", .field = "rope_short_factors"},
        {.key = "rope_parameters.long_factor", .field = "rope_long_factors"},
        {.key = "sliding_window", .field = "window"},
        mh::only_value("attention_bias", false),
        mh::only_value("lm_head_bias", false),
        mh::only_value("mlp_bias", false)}}
  );
  return {
      {.model_type = "phi3",
       .architecture = "Phi3ForCausalLM",
       .keys = std::move(keys),
       .harmless = {"full_attn_mod", "interpolate_factor"},
       .simplify = simplify,
       .restore = restore}};
}

class Phi3 : public mh::Decoder {
public:
  using Config = mh::LlamaConfig;

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
