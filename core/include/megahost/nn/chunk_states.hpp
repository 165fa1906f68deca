#pragma once
/// The states of recurrent layers that work on chunks of tokens at once (Mamba-2, delta rules and
/// their relatives): within a chunk they multiply matrices, from one chunk to the next a state is
/// passed.

#include "megahost/builder.hpp"
#include "megahost/context.hpp"
#include "megahost/export.hpp"
#include "megahost/nn/cache.hpp"

#include <ATen/core/Tensor.h>

#include <string_view>

namespace mh {

/// The states of h = decay * h + update before each chunk, or of h = transition h + update with
/// matrices, wherever strategies put the tokens of a sample.
///
/// ```cpp
/// class Sums { // sums of all tokens so far, in chunks of one token
/// public:
///   Sums(mh::Builder& builder, mh::Axis mlp) : states_(builder, "sums", {mlp}) {}
///
///   at::Tensor forward(const at::Tensor& x, mh::StepContext& context) const { // [seq, batch, mlp]
///     return states_.before(at::ones_like(x), x, context).add(x);
///   }
///
/// private:
///   mh::ChunkStates states_;
/// };
/// ```
///
/// Documents: a decay or a transition of 0 forgets what was before
/// Memory:  saves decays or transitions, and the states that it returns
/// Ranks:   collective over the mesh axis that splits samples, if one does: each rank sends, for
///          each of its runs of tokens, the product of the decays and the last state. None waits
///          for another's states
/// Generation: goes on from the state that it keeps in the context's kv_cache
/// Source:  arXiv:2405.21060 section 6 (states between chunks); LASP-2, arXiv:2502.07563 (one gather
///          of states)
class MH_API ChunkStates {
public:
  /// Args:    name: tells this layer from others of its block
  ///          dims: of one sample's state, global
  ChunkStates(Builder& builder, std::string_view name, const Dims& dims);

  /// Shapes:  decays [chunks, batch, ...], some of the first dimensions of the state; updates
  ///          [chunks, batch, dims...] of this rank's chunks, in the order of its rows, as many in
  ///          each of its runs of tokens (own_runs) -> like updates: the state before each chunk,
  ///          zeros at the beginning of a sample
  /// Dtype:   float32, or float64 in a model of that
  [[nodiscard]] at::Tensor
  before(const at::Tensor& decays, const at::Tensor& updates, StepContext& context) const;

  /// The states before each chunk of h = transition h + update.
  ///
  /// Shapes:  transitions [chunks, batch, ..., n, n] for updates [chunks, batch, ..., n, m] of a
  ///          state of at least two dimensions -> like updates
  /// Dtype:   as `before`
  [[nodiscard]] at::Tensor before_with_matrices(
      const at::Tensor& transitions, const at::Tensor& updates, StepContext& context
  ) const;

private:
  CachedState cached_;
};

} // namespace mh
