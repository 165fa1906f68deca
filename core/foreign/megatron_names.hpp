#pragma once
/// Names of tensors in Megatron-LM's checkpoints, and those of the state_dict of megatron-core's
/// GPTModel, BertModel, T5Model or MambaModel (of its own layers, on one rank), to which an
/// architecture's `megatron()` maps ours.
///
/// Source:  megatron-core 0.16.1, transformer_block.py, moe/experts.py, gpt_layer_specs.py,
///          models/T5/t5_model.py, ssm/mamba_block.py

#include "core/formats/pickle.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// The meaning of a name in a file.
struct MegatronName {
  /// The state_dict's, with "{}" for each dimension that the tensor has before its own:
  /// "decoder.layers.{}.input_layernorm.weight". A moment's begins with "optimizer.exp_avg.", a
  /// master weight's with "optimizer.master.".
  std::string text;
  /// The half of a gated feed-forward that is saved in halves: 0 the gate, 1 the factor that it
  /// gates.
  std::optional<int64_t> half{};
  /// It is the other name of a tensor that T5 has twice, and `text` the first one.
  bool is_second = false;

  /// Dimensions that the tensor has before its own.
  [[nodiscard]] size_t stacked() const;
  /// The name of the entry at these indices of them.
  [[nodiscard]] std::string at(const std::vector<int64_t>& indices) const;
};

/// "decoder.layers." or "encoder.layers.", with which a name begins that is of one of their layers;
/// else empty.
[[nodiscard]] std::string_view layer_stack(std::string_view name);

/// The meaning of a name of `torch_dist`, or of a state_dict's.
[[nodiscard]] MegatronName megatron_name(std::string_view stored);

/// Takes "mtp.layers.0.transformer_layer.", of a layer that predicts a further token, off the
/// beginning of a name, or nothing.
[[nodiscard]] std::string take_prediction(std::string& ret_name);

/// A name of Megatron-LM before megatron-core (and of NeuronX's form of it) in megatron-core's terms:
/// "language_model.encoder.layers.0.attention.dense.weight" is
/// "decoder.layers.0.self_attention.linear_proj.weight". Another is returned as it is.
[[nodiscard]] std::string modern_megatron_name(std::string_view name);

/// The place of a state_dict's tensor in a folder of `torch_dist`.
struct MegatronPlace {
  std::string name;             ///< "decoder.layers.self_attention.linear_qkv.weight"
  std::vector<int64_t> at, all; ///< index and size of each dimension before the tensor's own
  std::string second_name;      ///< under which it is there again; or empty
};

/// The places of a model's tensors, by the state_dict's names. The layers of a stack are one tensor
/// if they are all alike; else each has its number in its names, as megatron-core does it. Those of
/// hybrids and of multi-token prediction always have.
[[nodiscard]] std::map<std::string, MegatronPlace>
torch_dist_places(const std::vector<std::string>& names);

/// The dimension of a state_dict's tensor that Megatron-LM splits over tensor-parallel ranks; nothing
/// if each has all of it. Ranks have parts of both halves of a gated feed-forward.
[[nodiscard]] std::optional<size_t> megatron_split_dim(std::string_view name);

/// The arguments that a checkpoint's pickle keeps of its run, as JSON: "iteration", and the
/// numbers, words and truth values of "args".
[[nodiscard]] std::string megatron_arguments(const PickleValue& root);

} // namespace mh
