#pragma once
/// The places of a model's parameters in the buffers of Megatron-LM's distributed optimizer.

#include "core/checkpoint/assembled.hpp"
#include "core/foreign/megatron_modules.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace mh {

/// A bucket's tensors, by state: "param".
struct BufferBucket {
  int64_t elements = 0;
  std::map<std::string, size_t> states;
};

/// A buffer of a rank's model chunk: its buckets, by their numbers.
using StateBuffer = std::map<int64_t, BufferBucket>;

/// The buffers of each rank, in the order of its model chunks.
using RankBuffers = std::map<int64_t, std::vector<StateBuffer>>;

/// The buffers of a checkpoint, and the ranks that they are of.
struct SavedBuffers {
  RankBuffers dense;   ///< tensor-parallel ranks of the first stage, then those of the next one
  RankBuffers experts; ///< the same with tensor- and expert-parallel ranks; empty: among the others
  int64_t tensor = 1, pipeline = 1, expert = 1, expert_tensor = 1;
};

/// The tensors "optimizer.STATE.NAME" of buffers.
///
/// ret_problem:  gets the reason if there are none: modules in this order do not fill the buffers
[[nodiscard]] std::vector<AssembledTensor> lay_out_buffers(
    const SavedBuffers& buffers,
    const std::vector<AssembledTensor>& weights,
    const ModuleOrder& order,
    const CheckpointReader& stored,
    std::string& ret_problem
);

} // namespace mh
