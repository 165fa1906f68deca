#pragma once
/// Layer norms over the last dimension, statistics in float32.

#include "megahost/builder.hpp"
#include "megahost/context.hpp"
#include "megahost/export.hpp"

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace mh {

enum class NormKind : uint8_t { layernorm, rmsnorm };

/// "layernorm" or "rmsnorm".  Throws:  mh::Error for anything else
[[nodiscard]] MH_API NormKind norm_kind(const std::string& name);

struct NormSpec {
  NormKind kind = NormKind::layernorm;
  Axis axis; ///< what is normalised: the last dimension
  double eps = 1e-5;
  Placement seen; ///< of the activation it meets; `builder.place(axis)` for the residual stream
};

/// y = (x - mean) / sqrt(var + eps) * weight + bias, or y = x / sqrt(mean(x²) + eps) * weight.
///
/// Saves the input and one or two float32 values per row.
/// Shapes:  x [..., axis] -> the same
/// Source:  arXiv:1607.06450, arXiv:1910.07467
class MH_API Norm {
public:
  Norm(Builder& builder, const NormSpec& spec);
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;
  /// The same as the block's part "norms" (StepContext::part).
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, StepContext& context) const;
  /// reader(norm(x)) where nothing else reads the norm's result.
  [[nodiscard]] at::Tensor forward(
      const at::Tensor& x,
      StepContext& context,
      const std::function<at::Tensor(const at::Tensor&)>& reader
  ) const;

private:
  NormKind kind_;
  double eps_;
  Parameter* weight_;
  Parameter* bias_ = nullptr;
};

/// The operation by itself; `bias` may be undefined.
[[nodiscard]] MH_API at::Tensor normalise(
    NormKind kind, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps
);

} // namespace mh
