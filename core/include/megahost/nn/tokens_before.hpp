#pragma once
/// The rows of the tokens just before each token: what token shifts and causal convolutions read.

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
///     TokenShift(mh::Builder& builder, mh::Axis embed) : before_(builder, "before", embed, 1) {}
///     ...
///     const at::Tensor before = before_.forward(x, context).front(); // x[t - 1], or zeros
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

private:
  uint64_t site_;
  Axis last_;
  int64_t count_;
};

} // namespace mh
