#pragma once
/// Rows of other tokens, for layers that look at them in another way than attention does: those
/// just before each token (token shifts, causal convolutions), or those of the whole sample
/// (Fourier mixing, long convolutions, layers over positions).

#include "megahost/builder.hpp"
#include "megahost/context.hpp"
#include "megahost/export.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace mh {

/// A layer that looks at the rows before its own. A row of x is not always preceded by that of the
/// token before: strategies split samples over ranks, a sample may hold several documents, and
/// generation reads new tokens alone. This layer knows all three.
///
/// ```cpp
/// class TokenShift {
/// public:
///   TokenShift(mh::Builder& builder, mh::Axis embed) : before_(builder, "before", embed, 1) {}
///
///   at::Tensor forward(const at::Tensor& x, mh::StepContext& context) const {
///     const at::Tensor before = before_.forward(x, context).front(); // x[t - 1], or zeros
///     return x.add(before);
///   }
///
/// private:
///   mh::TokensBefore before_;
/// };
/// ```
///
/// Ranks:   collective over the mesh axes that split samples, if some do: each rank sends the last
///          `count` rows of each of its runs of tokens
/// Generation: keeps `count` rows in the context's kv_cache
class MH_API TokensBefore {
public:
  /// Args:    name: tells this layer from others of its block
  ///          last: what the last dimension of x means
  ///          count: tokens to look back, at least 1
  TokensBefore(Builder& builder, std::string_view name, Axis last, int64_t count);

  /// Shapes:  x [seq, batch, last] -> `count` tensors like x. Row t of number i is x's row of token
  ///          t - 1 - i, or zeros where that is before the sample or of another document (the
  ///          context's array "segments")
  [[nodiscard]] std::vector<at::Tensor> forward(const at::Tensor& x, StepContext& context) const;

  /// Only the rows before each of this rank's runs of neighbouring tokens (own_runs), for a layer
  /// that finds all others in x itself.
  ///
  /// Shapes:  x [seq, batch, last] -> [runs, count, batch, last], the nearest row last; zeros
  ///          before the sample. Documents are the caller's to tell apart
  [[nodiscard]] at::Tensor before_runs(const at::Tensor& x, StepContext& context) const;

private:
  uint64_t site_;
  Axis last_;
  int64_t count_;
};

/// The runs of neighbouring tokens that an activation's rows are on this rank, in their order; over
/// a cache the new tokens, counted from 0.
///
/// Shapes:  x [seq, batch, ...], split over ranks as the batch's arrays are
[[nodiscard]] MH_API std::vector<TokenRun> own_runs(const at::Tensor& x, StepContext& context);

/// The whole samples, for a layer that mixes tokens in a way of its own.
///
/// ```cpp
/// class Centred {
/// public:
///   explicit Centred(mh::Axis embed) : all_(embed) {}
///
///   at::Tensor forward(const at::Tensor& x, mh::StepContext& context) const {
///     const at::Tensor whole = all_.gather(x, context); // [seq, batch, embed], tokens in order
///     const at::Tensor mixed = whole.sub(whole.mean({0}, /*keepdim=*/true));
///     return all_.own(mixed, context); // this rank's rows of the result
///   }
///
/// private:
///   mh::AllTokens all_;
/// };
/// ```
///
/// Every rank computes the whole mixture, and a weight in it gets the gradient of the rank's own
/// rows, as a weight that meets x does.
///
/// A recurrent layer takes its tokens in this way, too, and in generation continues from a state of
/// its own (CachedState, nn/cache.hpp):
///
/// ```cpp
/// const mh::AllTokens all(embed);
/// const bool grows = context.mode().kv_cache != nullptr;
/// const at::Tensor whole = grows ? x : all.gather(x, context);
/// ```
///
/// Ranks:   `gather` is collective over the mesh axes that split samples, if some do
class MH_API AllTokens {
public:
  /// `last`: what the last dimension of x means
  explicit AllTokens(Axis last)
      : last_(last) {}

  /// Shapes:  x [rows, batch, ...] -> [seq, batch, ...]
  /// Throws:  mh::Error in a context with a kv_cache: a block with this layer must not say that it
  ///          reads one (Block::reads_cache)
  [[nodiscard]] at::Tensor gather(const at::Tensor& x, StepContext& context) const;

  /// Documents of the gathered rows, [seq, batch]; undefined where samples are one document each.
  [[nodiscard]] at::Tensor segments(StepContext& context) const;

  /// Shapes:  whole [seq, batch, ...] -> [rows, batch, ...]
  [[nodiscard]] at::Tensor own(const at::Tensor& whole, StepContext& context) const;

private:
  Axis last_;
};

} // namespace mh
