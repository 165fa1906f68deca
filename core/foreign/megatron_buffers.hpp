#pragma once
/// The state of Megatron-LM's distributed optimizer in the order of its buffers, as it saves it
/// without `--dist-ckpt-optim-fully-reshardable` (`dp_reshardable`).
///
/// Each model-parallel rank has a buffer for each of its model chunks: all parameters, the last one
/// first, each at a multiple of 64 elements, and parted into buckets; a tensor of the checkpoint is
/// a bucket of masters or of a moment. With expert parallelism experts have an optimizer of their
/// own, whose ranks are those of their own groups:
///
///     optimizer.distributed.dp_group_idx_1.gbuf_idx_0.dtype_(...).bucket_idx_0.exp_avg
///     chained_1.optimizer.distributed.dp_group_idx_3.gbuf_idx_0.dtype_(...).bucket_idx_0.param
///
/// The checkpoint does not say which parameter lies where: that follows from the order in which
/// modules are made, and is compared with the weights. A stage has as many layers as fill its
/// buffer.
///
/// Source:  megatron-core 0.16.1, distributed/param_and_grad_buffer.py, optimizer/distrib_optimizer.py

#include "core/checkpoint/assembled.hpp"

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// The state that was found in buffers.
struct BufferStates {
  std::vector<AssembledTensor> tensors; ///< "optimizer.STATE.NAME", by the state_dict's names
  std::string unread;                   ///< why buffers are there, and not read; else empty
};

/// Whether a tensor is a bucket of such a buffer.
[[nodiscard]] bool is_bucket(std::string_view name);

/// None if there are no buffers; or if parameters do not fill them; or if the first masters of each
/// rank's part of a parameter, rounded, are not the weights.
///
/// weights:    of `stored`
/// arguments:  those of Megatron-LM, which say how many ranks there were
/// Throws:     mh::Error (exit code 5) where `stored` cannot be read
[[nodiscard]] BufferStates states_of_buffers(
    CheckpointReader& stored,
    const std::vector<AssembledTensor>& weights,
    const nlohmann::json& arguments
);

} // namespace mh
