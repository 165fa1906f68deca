#pragma once
/// The order in which Megatron-LM makes the modules of a GPTModel, by the state_dict's names.
///
/// Source:  megatron-core 0.16.1, models/gpt/gpt_model.py, gpt_layer_specs.py,
///          transformer/transformer_layer.py, multi_latent_attention.py, moe/

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

namespace mh {

/// The ways in which the same tensors may be in another order.
struct ModuleOrder {
  /// Norms are within the linear layers after them, as in Transformer Engine's layers. Where they are
  /// not, latent attention's projections down are split over tensor-parallel ranks.
  bool fused = false;
  bool grouped = false; ///< the first matrices of all experts, then the second ones
};

/// The place of a tensor among those of the model: modules, layer, part of a layer of multi-token
/// prediction, part of a layer, expert and matrix, bias.
using ModuleKey = std::tuple<int, int64_t, int, int, int64_t, int64_t, int>;

[[nodiscard]] ModuleKey
module_key(const std::string& name, const ModuleOrder& order, bool is_latent);

/// The number after a word of a name; nothing if there is none.
[[nodiscard]] std::optional<int64_t> number_after(std::string_view name, std::string_view word);

} // namespace mh
