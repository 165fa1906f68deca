#pragma once
/// Finds blocks that mix tokens in a way that the strategies do not know. Where ranks hold
/// different tokens of a sample, such a block would silently mix this rank's tokens alone; where a
/// sample holds several documents, it would mix those.

#include "megahost/context.hpp"
#include "megahost/export.hpp"
#include "megahost/parameter.hpp"
#include "megahost/state.hpp"

#include <functional>
#include <string_view>
#include <vector>

namespace mh {

/// Whether tokens of a sample must not meet but in layers that know how: ranks hold different ones
/// of some sequence of the batch, or an array of segments says that they are of several documents.
[[nodiscard]] bool keeps_tokens_apart(const StepContext& context);

/// While it lives, what the calling thread runs is a trial and no part of the step: who counts a
/// step's collectives leaves those out.
class MH_API MixingTrial {
public:
  MixingTrial();
  ~MixingTrial();
  MixingTrial(const MixingTrial&) = delete;
  MixingTrial& operator=(const MixingTrial&) = delete;

  /// Whether the calling thread has one.
  [[nodiscard]] static bool runs();
};

/// A block that is tried.
struct TriedBlock {
  std::string_view name;
  std::vector<Parameter*> parameters; ///< those that the trial computes no gradients for
  bool coarse = false;                ///< rows are rounded by what others hold (FP8)
  std::function<State(const State& state, StepContext& context)> run;
};

/// Runs a block forward and backward in a context in which layers give zeros for what they take
/// from other tokens (StepContext::apart), then again with NaN in some tokens' rows, in their
/// gradients, and with other values in their arrays. Then a row of the result, and a row of what
/// comes back, may depend on its own token alone: one of another token that is no longer the same
/// shows that the block mixes them by itself.
///
/// Returns: what the block makes of `state` in such a context, for the next block
/// Throws:  mh::Error naming the block
/// Ranks:   as the block
[[nodiscard]] State
check_token_mixing(const TriedBlock& block, const State& state, const StepContext& context);

} // namespace mh
