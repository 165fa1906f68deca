#include "megahost/nn/decoder_hugging_face.hpp"

#include "megahost/error.hpp"
#include "megahost/nn/decoder.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace mh {

namespace {

const Value* given(const Table& table, std::string_view key) {
  const Value* value = table.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

void keep_only(Table& table, std::string_view prefix, const std::vector<std::string_view>& kept) {
  std::vector<std::string> erased;
  for (const auto& entry : table) {
    if (entry.key.starts_with(prefix) &&
        std::find(kept.begin(), kept.end(), entry.key) == kept.end()) {
      erased.push_back(entry.key);
    }
  }
  for (const std::string& key : erased) {
    table.erase(key);
  }
}

/// 0.1 m ln(factor) + 1, arXiv:2309.00071.
double yarn_magnitude(double factor, double m = 1) {
  return factor <= 1 ? 1 : 0.1 * m * std::log(factor) + 1;
}

/// transformers takes the two together as one factor of queries and keys.
void simplify_magnitude(Table& rope) {
  const Value over = rope.take("mscale");
  const Value under = rope.take("mscale_all_dim");
  const double m = over.is_null() ? 0 : over.as_number();
  const double all = under.is_null() ? 0 : under.as_number();
  if (m != 0 && all != 0 && given(rope, "attention_factor") == nullptr) {
    const double factor = rope.find("factor")->as_number();
    Value ratio = yarn_magnitude(factor, m) / yarn_magnitude(factor, all);
    ratio.origin = over.origin;
    rope.set("attention_factor", ratio);
  }
}

} // namespace

void simplify_rope(Table& config, bool latent) {
  const Value theta = config.take("rope_theta");
  const Value share = config.take("partial_rotary_factor");
  const Value scaling = config.take("rope_scaling");
  const bool old = scaling.is_table() && !scaling.as_table().empty();
  if (!scaling.is_null() && !scaling.is_table()) {
    (void)scaling.as_table(); // says that it is none
  }
  Value value = old ? scaling : config.take("rope_parameters");
  config.erase("rope_parameters");
  if (value.is_null()) {
    value = Table();
  }
  Table& rope = value.as_table();
  const auto move = [&rope](const char* key, const Value& outside) {
    if (given(rope, key) == nullptr && !outside.is_null()) {
      rope.set(key, outside);
    }
  };
  move("rope_theta", theta);
  move("partial_rotary_factor", share);
  move("rope_type", rope.take("type"));
  const Value* type = given(rope, "rope_type");
  if (type != nullptr && type->as_string() != "default") {
    if (given(rope, "factor") == nullptr) {
      const std::string where = type->origin.where();
      throw Error(
          (where.empty() ? "config.json" : where) + ": rope_type is \"" + type->as_string() +
              "\", but there is no factor next to it",
          "give the factor by which positions are stretched",
          exit_code::data
      );
    }
    if (const Value* length = given(config, "max_position_embeddings")) {
      move("original_max_position_embeddings", *length);
    }
    if (!latent) {
      simplify_magnitude(rope);
    }
  }
  config.set("rope_parameters", value);
}

void simplify_windows(Table& config, bool alternate) {
  const Value use = config.take("use_sliding_window");
  const Value most = config.take("max_window_layers");
  if (use.is_null() || !use.as_boolean()) {
    config.erase("sliding_window");
    config.erase("layer_types");
    config.set("sliding_window", Value());
    return;
  }
  const int64_t bound = most.is_null() ? 28 : most.as_integer();
  complete_layer_types(config, [alternate, bound](int64_t layer) {
    return alternate ? layer % 2 == 0 && layer < bound : layer >= bound;
  });
  simplify_layer_types(config);
}

bool is_absent(const Table& config, std::string_view key) {
  return given(config, key) == nullptr;
}

void complete_layer_types(Table& config, const std::function<bool(int64_t layer)>& has_window) {
  if (!is_absent(config, "layer_types")) {
    return;
  }
  Value::Array types;
  for (int64_t i = 0; i < config.find("num_hidden_layers")->as_integer(); ++i) {
    types.emplace_back(has_window(i) ? "sliding_attention" : "full_attention");
  }
  config.set("layer_types", std::move(types));
}

void simplify_layer_types(Table& config) {
  const Value::Array& types = config.find("layer_types")->as_array();
  const auto is = [](const char* word) {
    return [word](const Value& type) { return type == Value(word); };
  };
  if (std::all_of(types.begin(), types.end(), is("full_attention"))) {
    config.set("sliding_window", Value());
  }
  if (std::all_of(types.begin(), types.end(), is("full_attention")) ||
      std::all_of(types.begin(), types.end(), is("sliding_attention"))) {
    config.erase("layer_types");
  }
}

void restore_windows(Table& config) {
  const bool window = given(config, "sliding_window") != nullptr;
  config.set("use_sliding_window", window);
  if (window && given(config, "layer_types") == nullptr) {
    config.erase("layer_types");
    config.set("max_window_layers", 0);
  }
}

void restore_layer_types(Table& config) {
  if (given(config, "layer_types") == nullptr) {
    const bool window = given(config, "sliding_window") != nullptr;
    const auto layers = static_cast<size_t>(config.find("num_hidden_layers")->as_integer());
    config.set(
        "layer_types", Value::Array(layers, Value(window ? "sliding_attention" : "full_attention"))
    );
  }
}

std::vector<HfKey> window_keys() {
  return {
      {.key = "sliding_window", .field = "window", .absent = 4096},
      {.key = "layer_types",
       .field = "window_pattern",
       .words = {{"sliding_attention", "window"}, {"full_attention", "global"}}},
  };
}

std::vector<HfKey> rope_keys(double base) {
  const auto rope = [](std::string key, const char* field, Value absent = {}) {
    return HfKey{.key = "rope_parameters." + key, .field = field, .absent = std::move(absent)};
  };
  return {
      rope("rope_theta", "rope_base", base),
      {.key = "rope_parameters.rope_type",
       .field = "rope_scaling",
       .absent = "default",
       .words =
           {{"default", "none"}, {"linear", "linear"}, {"llama3", "llama3"}, {"yarn", "yarn"}}},
      {.key = "rope_parameters.partial_rotary_factor", .absent = 1, .words = {{1}}},
      rope("factor", "rope_factor"),
      rope("low_freq_factor", "rope_low_freq"),
      rope("high_freq_factor", "rope_high_freq"),
      rope("beta_slow", "rope_beta_slow"),
      rope("beta_fast", "rope_beta_fast"),
      rope("attention_factor", "rope_attention"),
      rope("original_max_position_embeddings", "rope_original_length"),
      rope("truncate", "rope_truncate", true),
  };
}

std::vector<HfKey> llama_keys(const LlamaDefaults& d) {
  const std::vector<HfKey> own{
      {.key = "vocab_size", .field = "vocab", .absent = d.vocab},
      {.key = "hidden_size", .field = "hidden", .absent = d.hidden},
      {.key = "intermediate_size", .field = "ffn_hidden", .absent = d.ffn_hidden},
      {.key = "num_hidden_layers", .field = "layers", .absent = d.layers},
      {.key = "num_attention_heads", .field = "heads", .absent = d.heads},
      {.key = "num_key_value_heads", .field = "kv_heads", .absent = d.kv_heads},
      {.key = "head_dim", .field = "head_dim", .absent = d.head_dim},
      {.key = "hidden_act",
       .field = "activation",
       .absent = "silu",
       .words = {{"silu", "swiglu"}, {"swish", "swiglu"}, {"gelu", "geglu"}}},
      {.key = "max_position_embeddings",
       .field = "seq_length",
       .absent = d.length,
       .compared = false},
      {.key = "rms_norm_eps", .field = "norm_eps", .absent = d.norm_eps},
      {.key = "tie_word_embeddings", .field = "tied", .absent = false},
  };
  return joined({own, rope_keys(d.rope_base)});
}

std::vector<HfKey> joined(std::initializer_list<std::vector<HfKey>> lists) {
  std::vector<HfKey> all;
  for (const auto& list : lists) {
    for (const HfKey& key : list) {
      std::erase_if(all, [&key](const HfKey& other) { return other.key == key.key; });
      all.push_back(key);
    }
  }
  return all;
}

std::vector<std::string> decoder_free() {
  return {
      "dropout",
      "attention_dropout",
      "init_std",
      "embedding_std",
      "scaled_init",
      "mtp_layers", // not in what `transformers` computes
      "mtp_loss_weight"};
}

namespace {

void set_absent(Table& fields, const char* field, const Value& value) {
  if (given(fields, field) == nullptr) {
    fields.set(field, value);
  }
}

void plain_sizes(Table& f) {
  const int64_t hidden = f.find("hidden")->as_integer();
  const Value heads = f.find("heads")->as_integer();
  set_absent(f, "kv_heads", heads);
  set_absent(f, "head_dim", hidden / heads.as_integer());
  if (given(f, "kv_rank") == nullptr) {
    set_absent(f, "score_dim", f.find("head_dim")->as_integer());
  }
  set_absent(f, "qkv_bias", f.find("bias")->as_boolean());
  const std::string& activation = f.find("activation")->as_string();
  set_absent(f, "ffn_hidden", decoder_detail::default_ffn_hidden(hidden, activation));
  if (given(f, "kv_rank") != nullptr) {
    set_absent(f, "rope_head_dim", 64);
    set_absent(f, "v_head_dim", f.find("head_dim")->as_integer());
  }
}

/// A word a layer, `usual` where there is no pattern.
Value each_layer(const Value& pattern, int64_t layers, const char* usual) {
  Value::Array words;
  const Value::Array& kinds = pattern.as_array();
  for (int64_t i = 0; i < layers; ++i) {
    words.push_back(kinds.empty() ? Value(usual) : kinds[static_cast<size_t>(i) % kinds.size()]);
  }
  Value made(std::move(words));
  made.origin = pattern.origin;
  return made;
}

/// No pattern without a window.
void plain_window(Table& f) {
  const Value pattern = f.take("window_pattern");
  if (given(f, "window") != nullptr) {
    f.set("window_pattern", each_layer(pattern, f.find("layers")->as_integer(), "window"));
  }
}

void plain_query_key_norm(Table& f) {
  if (!f.find("qk_norm")->as_boolean()) {
    f.erase("qk_norm_kind");
  } else {
    const bool one_plus = *f.find("norm") == Value("rmsnorm_1p");
    set_absent(f, "qk_norm_kind", one_plus ? "rmsnorm_1p" : "rmsnorm");
  }
}

/// sqrt(1 + ln(factor) / ln(length)), arXiv:2402.13753.
double longrope_magnitude(double factor, double length) {
  return factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(length));
}

void plain_rope(Table& f) {
  if (f.find("positions")->as_string() != "rope") {
    keep_only(f, "rope_", {});
    return;
  }
  f.set("rope_pattern", each_layer(f.take("rope_pattern"), f.find("layers")->as_integer(), "rope"));
  const std::string scaling = f.find("rope_scaling")->as_string();
  std::vector<std::string_view> kept{
      "rope_base", "rope_share", "rope_pairs", "rope_pattern", "rope_scaling", "rope_head_dim"};
  if (scaling == "none") {
    keep_only(f, "rope_", kept);
  } else if (scaling == "linear") {
    kept.emplace_back("rope_factor");
    keep_only(f, "rope_", kept);
  } else if (scaling == "llama3") {
    for (const char* name :
         {"rope_factor", "rope_low_freq", "rope_high_freq", "rope_original_length"}) {
      kept.emplace_back(name);
    }
    keep_only(f, "rope_", kept);
  } else if (scaling == "longrope") {
    for (const char* name :
         {"rope_factor",
          "rope_original_length",
          "rope_attention",
          "rope_short_factors",
          "rope_long_factors"}) {
      kept.emplace_back(name);
    }
    keep_only(f, "rope_", kept);
    const double length = f.find("rope_original_length")->as_number();
    set_absent(f, "rope_attention", longrope_magnitude(f.find("rope_factor")->as_number(), length));
  } else {
    f.erase("rope_low_freq");
    f.erase("rope_high_freq");
    f.erase("rope_short_factors");
    f.erase("rope_long_factors");
    if (given(f, "rope_mscale") == nullptr) {
      set_absent(f, "rope_attention", yarn_magnitude(f.find("rope_factor")->as_number()));
    }
  }
}

} // namespace

void decoder_plain(Table& fields) {
  plain_sizes(fields);
  plain_window(fields);
  plain_query_key_norm(fields);
  plain_rope(fields);
}

} // namespace mh
