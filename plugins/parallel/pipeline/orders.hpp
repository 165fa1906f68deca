#pragma once
/// In which order each stage of a pipeline runs its passes, schedule by schedule.

#include <megahost/pipeline_schedule.hpp>

#include <cstdint>
#include <vector>

namespace mh::pipeline {

using Args = PipelineSchedule::Args;

struct Order {
  InstructionLists passes{}; ///< passes of each stage
  std::vector<int64_t>
      most_live{}; ///< passes whose activations each stage holds at a time, at most
  ChunkOrder chunks = ChunkOrder::round; ///< stages of the chunks
};

/// All forward passes, then all backward ones; with virtual stages chunk after chunk.
///
/// Source:  arXiv:1811.06965
[[nodiscard]] Order gpipe(const Args& args);

/// One forward, one backward: stage s begins with as many forward passes as there are stages after
/// it. Over several chunks a stage, groups of as many microbatches as stages go through chunk after
/// chunk.
///
/// Throws:  mh::Error if there are virtual stages, and the stages do not divide the microbatches
/// Source:  arXiv:2104.04473 section 2.2; interleaved in the order of Megatron Core's schedule
/// table
[[nodiscard]] Order one_forward_one_backward(const Args& args);

/// 1F1B whose weight gradients wait: stage s puts each off by s microbatches, so that the gradients
/// of inputs come to the stages before it earlier and the waiting at the end is filled. No stage
/// holds more than the first one of 1F1B.
///
/// Throws:  mh::Error if there are virtual stages
/// Source:  arXiv:2401.10241 section 3, ZB-H1
[[nodiscard]] Order zero_bubble(const Args& args);

/// Two chunks a stage, the model laid down and up again: the first stage has both ends, so that the
/// first gradients come to the last forward pass at once. Weight gradients fill what is left: where
/// forward passes, gradients of inputs and of weights take one time, no stage waits between its
/// first pass and his last. No stage holds more than two passes per stage, of chunks half as large
/// as those of 1F1B.
///
/// Throws:  mh::Error if there are not two chunks a stage
/// Source:  arXiv:2401.10241 section 6, ZB-V
[[nodiscard]] Order zero_bubble_vee(const Args& args);

/// An order's lists with their transfers.
[[nodiscard]] inline InstructionLists lists_of(const Order& order, Args args) {
  args.order = order.chunks;
  return with_transfers(args, order.passes);
}

} // namespace mh::pipeline
