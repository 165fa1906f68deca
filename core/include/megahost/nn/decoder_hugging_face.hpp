#pragma once
/// Rows of Hugging Face mappings (hugging_face.hpp) that decoders have in common.

#include "megahost/export.hpp"
#include "megahost/hugging_face.hpp"

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// The defaults of `transformers` for absent keys, in which the relatives of its Llama differ.
struct LlamaDefaults {
  int64_t vocab = 0, hidden = 0, ffn_hidden = 0, layers = 0, heads = 0;
  Value kv_heads{}; ///< null: as many as heads
  Value head_dim{}; ///< null: hidden / heads
  double norm_eps = 1e-6;
  double rope_base = 10000;
  int64_t length = 0; ///< max_position_embeddings
};

/// Sizes, norm_eps, activation, `tied` and rotary positions by the keys that transformers' Llama
/// and its relatives use, for models whose `simplify` calls `simplify_rope`.
[[nodiscard]] MH_API std::vector<HfKey> llama_keys(const LlamaDefaults& defaults);

/// Rotary positions as `simplify_rope` makes them, of whole heads.
[[nodiscard]] MH_API std::vector<HfKey> rope_keys(double base);

/// The rows of several lists; a later row of a key replaces an earlier one.
[[nodiscard]] MH_API std::vector<HfKey> joined(std::initializer_list<std::vector<HfKey>> lists);

/// Brings rotary positions to the form of transformers 5, an object `rope_parameters`, from that of
/// version 4, `rope_theta` and `rope_scaling`. If `latent` is false, mscale and mscale_all_dim
/// become attention_factor; latent attention has fields for them.
///
/// Throws:  mh::Error for a scaling without its factor
MH_API void simplify_rope(Table& config, bool latent = false);

/// Brings Qwen's windows to `sliding_window` and, where some layers have none, `layer_types`.
/// Without layer_types the first max_window_layers have none; where they `alternate`, every second
/// layer from the first on has one, up to max_window_layers.
MH_API void simplify_windows(Table& config, bool alternate = false);
MH_API void restore_windows(Table& config);

/// Whether a key is left out or null, which `transformers` takes for the same.
[[nodiscard]] MH_API bool is_absent(const Table& config, std::string_view key);

/// Fills in `layer_types` where it is absent. Layers are numbered from 0.
MH_API void
complete_layer_types(Table& config, const std::function<bool(int64_t layer)>& has_window);

/// Leaves `layer_types` out if all layers are alike, and the window if no layer has one;
/// `restore_layer_types` writes them for each layer again.
MH_API void simplify_layer_types(Table& config);
MH_API void restore_layer_types(Table& config);

/// The rows of what `simplify_windows` and `simplify_layer_types` make.
[[nodiscard]] MH_API std::vector<HfKey> window_keys();

/// The fields of a decoder that a config.json does not decide.
[[nodiscard]] MH_API std::vector<std::string> decoder_free();

/// A decoder's fields in one form (see HfMapping::plain).
MH_API void decoder_plain(Table& fields);

} // namespace mh
