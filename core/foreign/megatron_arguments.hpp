#pragma once
/// The facts in Megatron-LM's arguments about a model that the shapes of its tensors do not show.

#include "megahost/value.hpp"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace mh {

/// The arguments that contradict fields of a recipe's model, each as "heads is 8 in the recipe, and
/// num_attention_heads 16 in the checkpoint". A fact that one of them lacks is not compared.
///
/// arguments:  as CheckpointReader::arguments gives them
/// model:      the fields of the section `model`, complete
[[nodiscard]] std::vector<std::string>
argument_differences(const nlohmann::json& arguments, const Table& model);

} // namespace mh
