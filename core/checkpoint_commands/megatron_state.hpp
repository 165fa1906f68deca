#pragma once
/// A run's state in a checkpoint of Megatron-LM, in addition to its weights.

#include "core/checkpoint/outlined.hpp"
#include "megahost/architecture.hpp"
#include "megahost/checkpoint_format.hpp"
#include "megahost/value.hpp"

#include <nlohmann/json.hpp>

#include <optional>
#include <vector>

namespace mh {

/// Weights under Megatron-LM's names, and with them the state of Adam if the checkpoint holds it:
/// moments, and float32 masters if `dtype` is another.
///
/// dtype:  that of the weights; none: as they are saved
[[nodiscard]] OutlinedTensors megatron_tensors(
    CheckpointReader& saved, const std::vector<HfTensor>& maps, std::optional<at::ScalarType> dtype
);

/// Whether `megatron_tensors` gave an optimizer's state.
[[nodiscard]] bool has_moments(const OutlinedTensors& tensors);

/// The facts that Megatron-LM keeps of a run that goes on: sizes and samples in "args", the optimizer's groups
/// and number of updates, the schedule of rates. As it saves a run with expert parallelism, experts
/// have an optimizer of their own if the run's layout splits them.
///
/// recipe:  the run's own
/// state:   the checkpoint's
/// Source:  megatron-core 0.16.1, optimizer/__init__.py, optimizer_param_scheduler.py
[[nodiscard]] nlohmann::ordered_json
megatron_common(const Value& recipe, const nlohmann::json& state);

} // namespace mh
