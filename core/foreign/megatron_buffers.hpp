#pragma once
/// The state of Megatron-LM's distributed optimizer in the order of its buffers, as it saves it
/// without `--dist-ckpt-optim-fully-reshardable` (`dp_reshardable`).
///
/// Each model-parallel rank has a buffer of all its parameters, the last one first, each at a multiple
/// of 64 elements, and parted into buckets; a tensor of the checkpoint is a bucket of masters or of a
/// moment. The checkpoint does not say which parameter lies where: that follows from the order in
/// which modules are made, and is compared with the weights.
///
/// Source:  megatron-core 0.16.1, distributed/param_and_grad_buffer.py, optimizer/distrib_optimizer.py

#include "core/checkpoint/assembled.hpp"

#include <nlohmann/json.hpp>

#include <vector>

namespace mh {

/// Tensors "optimizer.STATE.NAME" of buffers, by the state_dict's names. None if there are no such
/// buffers; if experts have buffers of their own, or chunks of a virtual pipeline; or if the first
/// masters of each parameter, rounded, are not the weights.
///
/// weights:    of `stored`
/// arguments:  those of Megatron-LM, which say how many ranks there were
/// Throws:     mh::Error (exit code 5) where `stored` cannot be read
[[nodiscard]] std::vector<AssembledTensor> states_of_buffers(
    CheckpointReader& stored,
    const std::vector<AssembledTensor>& weights,
    const nlohmann::json& arguments
);

} // namespace mh
