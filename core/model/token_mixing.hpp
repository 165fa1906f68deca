#pragma once
/// Finds blocks that mix tokens in a way that the strategies do not know. Where ranks hold different
/// tokens of a sample, such a block would silently mix this rank's tokens alone.

#include "megahost/context.hpp"
#include "megahost/export.hpp"
#include "megahost/state.hpp"

#include <functional>
#include <string_view>

namespace mh {

/// Whether ranks hold different tokens of some sequence of the batch.
[[nodiscard]] bool splits_tokens(const StepContext& context);

/// While it lives, what the calling thread runs is a trial and no part of the step: who counts a step's
/// collectives leaves those out.
class MH_API MixingTrial {
public:
  MixingTrial();
  ~MixingTrial();
  MixingTrial(const MixingTrial&) = delete;
  MixingTrial& operator=(const MixingTrial&) = delete;

  /// Whether the calling thread has one.
  [[nodiscard]] static bool runs();
};

/// Runs a block with NaN in some tokens' rows, in a context in which layers give zeros for what they
/// take from other tokens (StepContext::apart). Then each row of the result may depend on its
/// own token alone, and a NaN in another token's row shows that the block mixes them by itself.
///
/// Returns: what the block makes of `state` in such a context, for the next block
/// Throws:  mh::Error naming the block
/// Ranks:   as the block
[[nodiscard]] State check_token_mixing(
    std::string_view block,
    const State& state,
    const StepContext& context,
    const std::function<State(const State& state, StepContext& context)>& run
);

} // namespace mh
