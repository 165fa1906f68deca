#pragma once
/// In which order each stage of a pipeline runs its passes, schedule by schedule.

#include <megahost/pipeline_schedule.hpp>

#include <cstdint>
#include <vector>

namespace mh::pipeline {

using Args = PipelineSchedule::Args;

struct Order {
  InstructionLists passes;        ///< of each stage
  std::vector<int64_t> most_live; ///< passes whose activations each stage holds at a time, at most
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

} // namespace mh::pipeline
