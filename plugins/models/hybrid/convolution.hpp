#pragma once
/// The short causal convolution before a recurrence, and its activation.

#include <megahost/builder.hpp>
#include <megahost/context.hpp>
#include <megahost/nn/tokens_before.hpp>

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace mh::hybrid {

/// silu(bias + sum of weight[k] x[t - taps + 1 + k]), channel by channel.
///
/// Parameters: for each piece `NAME.weight` [piece, 1, taps] and, if there is one, `NAME.bias`
/// [piece]
/// Shapes:  x [seq, batch, pieces...], packed -> the same
/// Memory:  saves x; a few rows of other ranks
/// Ranks:   as TokensBefore
class Convolution {
public:
  Convolution(
      Builder& builder,
      const std::vector<std::pair<std::string, Axis>>& pieces,
      int64_t taps,
      bool bias
  );

  /// `documents` as documents_begun gives them.
  [[nodiscard]] at::Tensor
  forward(const at::Tensor& x, const at::Tensor& documents, StepContext& context) const;

private:
  Parameter* weight_;
  Parameter* bias_ = nullptr;
  TokensBefore before_;
};

} // namespace mh::hybrid
