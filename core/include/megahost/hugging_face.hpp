#pragma once
/// The relation of an architecture to Hugging Face's models: names of tensors, and keys of
/// config.json.
///
/// An architecture maps its tensors in `hugging_face()` (architecture.hpp) and its fields in a
/// static function:
///
/// ```cpp
/// static mh::HfMapping hugging_face_config() {
///   return {
///       .models = {{
///           .model_type = "gpt2",
///           .architecture = "GPT2LMHeadModel",
///           .keys = {
///               {.key = "n_layer", .field = "layers", .absent = 12},
///               {.key = "activation_function", .field = "activation", .absent = "gelu_new",
///                .words = {{"gelu_new", "gelu_tanh"}, {"gelu", "gelu"}}},
///               {.key = "scale_attn_weights", .absent = true, .words = {{true}}},
///           },
///           .always = {{"norm", "layernorm"}},
///           .harmless = {"summary_type"},
///       }},
///       .free = {"dropout"},
///   };
/// }
/// ```
///
/// From it the core derives `model = { from = "DIR" }` and `megahost recipe from-hf`, compares a
/// recipe with the config.json of the weights that it is given, and names unknown keys.
/// `megahost plugins check` tests both mappings (hugging-face-names, hugging-face-config).

#include "megahost/export.hpp"
#include "megahost/value.hpp"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// A value of a config.json, and what a field of ours is then. Both may be null.
struct HfWord {
  Value theirs;
  Value ours{};
};

/// One key of a config.json.
struct HfKey {
  std::string key; ///< "rms_norm_eps"; a member of an object with a dot: "rope_parameters.factor"
  /// A field of the section `model`; "seq_length" too. Empty: there is no such field, and of all
  /// values only those in `words` are possible.
  std::string field{};
  /// The value that `transformers` takes if the key is absent; null: the field is absent, too.
  Value absent{};
  /// The values that are possible, the first of several with the same meaning is written; of a list
  /// each item is one. Empty: any, as it is.
  std::vector<HfWord> words{};
  std::vector<std::string> aliases{}; ///< other names of the key, as `attribute_map` has them
  /// Whether a recipe may not say otherwise: false for what a model is merely good for, as
  /// max_position_embeddings with rotary positions.
  bool compared = true;
  /// Whether the field is read of the key: false for a part of a file that a recipe asks for or does
  /// without. Such a field is written, and one of `HfMapping::free`.
  bool read = true;
};

/// A key of which one value alone is possible, that of an absent key; no field of ours says it.
[[nodiscard]] MH_API HfKey only_value(std::string key, const Value& value);

/// The models of one `model_type`.
struct HfModel {
  std::string model_type;   ///< "llama"
  std::string architecture; ///< "LlamaForCausalLM"
  std::vector<HfKey> keys;
  Table always{}; ///< fields of ours that all of these models have
  /// Keys of a config.json that change no number of a forward pass; those that all models have
  /// (use_cache, torch_dtype, ids of tokens, ...) are known.
  std::vector<std::string> harmless{};
  /// Changes a config.json so that each of `keys` can be read by itself: what several keys say
  /// together is brought into one, and keys that were read are erased.
  ///
  /// Throws:  mh::Error for what the architecture cannot do
  std::function<void(Table& config)> simplify{};
  /// The opposite, for a config.json that is written.
  std::function<void(Table& config)> restore{};
};

struct HfMapping {
  std::vector<HfModel> models;
  /// Fields that a config.json does not decide, because they change training alone (dropout,
  /// initial values) or are the recipe's choice. Every other field is compared.
  std::vector<std::string> free{};
  /// Brings complete fields of a model to one form: what is absent is filled in, what has no effect
  /// is erased, and of two ways to say the same one is taken.
  std::function<void(Table& fields)> plain{};

  /// The row of a model_type, or null.
  [[nodiscard]] MH_API const HfModel* find(std::string_view model_type) const;
};

} // namespace mh
