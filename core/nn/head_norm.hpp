#pragma once
/// A norm of each head whose weights are its own.

#include "megahost/builder.hpp"
#include "megahost/nn/norm.hpp"
#include "megahost/parameter.hpp"

#include <ATen/core/Tensor.h>

namespace mh {

/// Parameters: `weight` [heads, head_dim]
/// Shapes:  x [..., heads of this rank, head_dim] -> the same
/// Ranks:   local
/// Source:  transformers' CohereLayerNorm of queries and keys (Command-R+)
class HeadNorm : public NormPart {
public:
  using NormPart::forward;

  /// `spec.axis` is the head's; its kind has neither a bias nor 1 + weight.
  ///
  /// Throws:  mh::Error for another kind
  HeadNorm(Builder& builder, Axis heads, const NormSpec& spec);
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const override;

private:
  NormKind kind_;
  double eps_;
  Parameter* weight_;
};

} // namespace mh
