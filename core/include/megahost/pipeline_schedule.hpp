#pragma once
/// Pipeline schedules as data: each stage's list of instructions. One executor runs any list, one
/// checker proves any list, one simulator times it, one renderer draws it.
///
/// Source:  arXiv:2104.04473 (1F1B, interleaved), arXiv:2401.10241 (zero bubble)

#include "megahost/export.hpp"
#include "megahost/kind.hpp"

#include <cstdint>
#include <vector>

namespace mh {

struct Instruction {
  enum class Op : uint8_t {
    forward,         ///< run a chunk's blocks
    backward,        ///< gradients of inputs and weights
    backward_input,  ///< gradients of inputs only; weight gradients are put off
    backward_weight, ///< the weight gradients put off before
    send_forward,    ///< activations to the next chunk's stage
    receive_forward,
    send_backward, ///< gradients to the previous chunk's stage
    receive_backward,
  };
  Op op = Op::forward;
  int32_t chunk = 0; ///< of this stage, 0 .. virtual_stages-1
  int32_t microbatch = 0;
  friend bool operator==(const Instruction&, const Instruction&) = default;
};

class MH_API PipelineSchedule {
public:
  static constexpr Kind kKind = Kind::pipeline_schedule;

  struct Args {
    int64_t stages = 1, virtual_stages = 1, microbatches = 1;
  };

  virtual ~PipelineSchedule();

  /// What stage `stage` does in one step, in order.
  [[nodiscard]] virtual std::vector<Instruction> instructions(int64_t stage) const = 0;
};

} // namespace mh
