#pragma once
/// Pipeline schedules as data: each stage's list of instructions. One executor runs any list, one
/// checker proves any list, one simulator times it, one renderer draws it.
///
/// A schedule says in which order each stage runs its passes; `with_transfers` puts the sends and
/// receives between them:
///
/// ```cpp
/// class Mine : public mh::PipelineSchedule {
/// public:
///   struct Config {};
///   static void fields(mh::Fields<Config>&) {}
///   Mine(const Config&, const Args& args)
///       : lists_(mh::with_transfers(args, my_passes(args))) {}
///   std::vector<mh::Instruction> instructions(int64_t stage) const override {
///     return lists_[stage];
///   }
///
/// private:
///   mh::InstructionLists lists_;
/// };
/// ```
///
/// With virtual stages the model goes round the stages several times, or down and up (ChunkOrder).
///
/// Source:  arXiv:2104.04473 (1F1B, interleaved), arXiv:2401.10241 (zero bubble)

#include "megahost/export.hpp"
#include "megahost/kind.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace mh {

/// The order in which the chunks of a model lie on the stages.
enum class ChunkOrder : uint8_t {
  round, ///< 0 1 2 0 1 2
  vee,   ///< 0 1 2 2 1 0: both ends of the model are on stage 0
};

struct Instruction {
  enum class Op : uint8_t {
    forward,          ///< run a chunk's blocks, once its input has come
    backward,         ///< gradients of inputs and weights, once the output's gradient has come
    backward_input,   ///< gradients of inputs only; weight gradients are put off
    backward_weight,  ///< the weight gradients put off before
    send_forward,     ///< activations to the next chunk's stage; does not wait
    receive_forward,  ///< makes room for what the chunk before sends; does not wait
    send_backward,    ///< gradients to the previous chunk's stage; does not wait
    receive_backward, ///< makes room for the output's gradients; does not wait
  };
  Op op = Op::forward;
  int32_t chunk = 0; ///< this stage's, 0 .. virtual_stages-1
  int32_t microbatch = 0;
  friend bool operator==(const Instruction&, const Instruction&) = default;
};

/// "backward_input of chunk 0, microbatch 3".
[[nodiscard]] MH_API std::string to_string(const Instruction& instruction);

class MH_API PipelineSchedule {
public:
  static constexpr Kind kKind = Kind::pipeline_schedule;

  struct Args {
    int64_t stages = 1, virtual_stages = 1, microbatches = 1;
    ChunkOrder order = ChunkOrder::round; ///< the schedule's; its constructor is not told

    /// Chunks of the model.
    [[nodiscard]] int64_t chunks() const { return stages * virtual_stages; }

    /// The model's chunk that is chunk `local` of stage `stage`.
    [[nodiscard]] int64_t chunk_of(int64_t stage, int64_t local) const {
      return local * stages + across(local, stage);
    }

    /// The stage of the model's chunk `chunk`; it is chunk `chunk / stages` there.
    [[nodiscard]] int64_t stage_of(int64_t chunk) const {
      return across(chunk / stages, chunk % stages);
    }

  private:
    [[nodiscard]] int64_t across(int64_t local, int64_t at) const {
      return order == ChunkOrder::vee && local % 2 == 1 ? stages - 1 - at : at;
    }
  };

  virtual ~PipelineSchedule();

  /// The instructions of stage `stage` in one step, in order.
  ///
  /// The sends and receives between two stages come in one order on both (see Group::send).
  [[nodiscard]] virtual std::vector<Instruction> instructions(int64_t stage) const = 0;

  /// The order of chunks on stages; the same for any number of microbatches. `with_transfers` takes
  /// it, too.
  [[nodiscard]] virtual ChunkOrder order() const { return ChunkOrder::round; }

  /// The most passes of one chunk whose activations stage `stage` holds at a time: from its forward
  /// pass to the gradients of its weights. The checker compares the list with it; 0: no promise.
  [[nodiscard]] virtual int64_t most_live(int64_t /*stage*/) const { return 0; }
};

/// Every stage's order of passes, without or with sends and receives.
using InstructionLists = std::vector<std::vector<Instruction>>;

/// Puts sends and receives between the passes. A send follows the pass that makes its tensors; a
/// receive is posted one pass before the one that needs it, or later where the order between the
/// two stages asks for that. Between two chunks of one stage nothing is sent.
///
/// Throws:  mh::Error naming the pass if the orders wait for one another forever
[[nodiscard]] MH_API InstructionLists
with_transfers(const PipelineSchedule::Args& args, const InstructionLists& passes);

} // namespace mh
