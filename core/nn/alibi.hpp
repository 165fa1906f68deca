#pragma once
/// ALiBi: a bias of attention scores that falls with the distance of key and query.

#include "megahost/context.hpp"
#include "megahost/export.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace mh {

/// The slope of each of `heads` heads: the powers of one number, and behind the largest power of 2 of
/// heads every second power of its root.
///
/// Source:  arXiv:2108.12409 section 3, and its reference for any number of heads (get_slopes)
[[nodiscard]] MH_API std::vector<double> alibi_slopes(int64_t heads);

/// The heads of a rank.
struct AlibiHeads {
  int64_t all = 0;
  int64_t first = 0, count = 0; ///< this rank's
  double factor = 1;            ///< factor of all slopes
};

/// -factor slope |distance| of distances from -(length - 1) to length - 1: what `attend` takes. Made
/// once per microbatch.
///
/// Shapes:  -> [heads of this rank, 2 length - 1] float32 (float64 if `options` are)
[[nodiscard]] MH_API at::Tensor alibi_bias(
    const AlibiHeads& heads, int64_t length, const at::TensorOptions& options, StepContext& context
);

} // namespace mh
