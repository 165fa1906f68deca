#pragma once
/// The cache of generation, which keeps the tokens read so far so that each new one is read alone:
/// keys and values of attention, rows that layers look back to, states of recurrent layers, and an
/// encoder's output.
///
/// Generation reads a text in pieces, in order and each token once: the prompt in one piece or in
/// several of any lengths, then one token at a time. A layer may tell neither how a text was cut
/// nor that there is a cache but by `StepMode::kv_cache`: what it gives for a token is the same as
/// in a pass over all of them. A cache is of one text per sample of the batch, which stays the
/// same; another text begins with another cache, in which nothing is kept yet.

#include "megahost/builder.hpp"
#include "megahost/context.hpp"
#include "megahost/export.hpp"
#include "megahost/state.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mh {

/// A context has one only where every block of the model says that it reads it
/// (Block::reads_cache).
class MH_API KeyValueCache {
public:
  /// Room for `capacity` tokens.
  explicit KeyValueCache(int64_t capacity)
      : capacity_(capacity) {}

  /// Appends one layer's keys and values; all of that layer's, the new ones last.
  ///
  /// Shapes:  k, v [seq, batch, kv_heads, dim] -> [tokens so far, batch, kv_heads, dim]
  [[nodiscard]] std::pair<at::Tensor, at::Tensor>
  append(uint64_t layer, const at::Tensor& k, const at::Tensor& v);

  /// The last `count` rows that a layer has seen before these, zeros where there were none, then x;
  /// the last `count` of them all are kept.
  ///
  /// Shapes:  x [seq, ...] -> [count + seq, ...]
  [[nodiscard]] at::Tensor rows(uint64_t layer, const at::Tensor& x, int64_t count);

  /// The state that CachedState keeps; undefined before the first piece.
  [[nodiscard]] at::Tensor& state(uint64_t layer) { return states_[layer]; }

  /// Tensors that do not change while a text grows, such as keys and values of an encoder's tokens:
  /// made for the first piece.
  [[nodiscard]] const std::vector<at::Tensor>&
  once(uint64_t layer, const std::function<std::vector<at::Tensor>()>& make);

  /// The state behind the blocks that run once (Block::runs_once), made for the first piece.
  [[nodiscard]] const State& once(const std::function<State()>& make);

  /// Forgets the text, but not what was made once.
  void restart();

private:
  struct Entry {
    at::Tensor k, v; // [capacity, batch, kv_heads, dim]
    int64_t length = 0;
  };

  int64_t capacity_;
  std::map<uint64_t, Entry> entries_;
  std::map<uint64_t, at::Tensor> states_; // by layer
  std::map<uint64_t, std::vector<at::Tensor>> once_;
  std::optional<State> encoded_;
};

/// The state of a recurrent layer: what it needs to know of all tokens before a piece.
///
/// ```cpp
/// class Decay { // h[t] = h[t - 1] / 2 + x[t]
/// public:
///   Decay(mh::Builder& builder, mh::Axis mlp) : sum_(builder, "sum", {mlp}) {}
///
///   at::Tensor forward(const at::Tensor& x, mh::StepContext& context) const { // [seq, batch, mlp]
///     at::Tensor h = sum_.before(context);                                    // [batch, mlp]
///     std::vector<at::Tensor> rows;
///     for (int64_t t = 0; t < x.size(0); ++t) {
///       h = h.mul(0.5).add(x.select(0, t));
///       rows.push_back(h);
///     }
///     sum_.keep(h, context);
///     return at::stack(rows);
///   }
///
/// private:
///   mh::CachedState sum_;
/// };
/// ```
///
/// Reset:    zeros before a sample's first token; in a context without a cache (training,
///           evaluation) always, and `keep` keeps nothing
/// Batch:    a state for each sample, in the order of the batch
/// Position: behind all tokens that were read before this pass; `keep` is called once in each pass,
///           with the state behind its last token
/// Dtype:    its own, whatever the activations have: a sum over a long text wants float32
/// Documents: a packed sample has several in training only: a layer begins anew where the context's
///           array "segments" changes
/// Ranks:    local. Dimensions are split as those of activations are. A layer whose tokens are
///           split over ranks gathers them first (AllTokens, nn/tokens_before.hpp)
class MH_API CachedState {
public:
  /// Args:    name: tells this state from others of its block
  ///          dims: of one sample's state, global
  ///          dtype: float32, or float64 in a model of that, if absent
  CachedState(
      Builder& builder,
      std::string_view name,
      const Dims& dims,
      std::optional<at::ScalarType> dtype = std::nullopt
  );

  /// Shapes:  -> [batch, dims...]
  [[nodiscard]] at::Tensor before(StepContext& context) const;

  /// Shapes:  after [batch, dims...]
  /// Throws:  mh::InternalError for another shape or dtype than `before` gives
  void keep(const at::Tensor& after, StepContext& context) const;

private:
  uint64_t site_;
  std::string name_;
  Dims dims_;
  at::TensorOptions options_;
};

} // namespace mh
