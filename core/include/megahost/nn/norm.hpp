#pragma once
/// Layer norms over the last dimension, statistics in float32.

#include "megahost/builder.hpp"
#include "megahost/context.hpp"
#include "megahost/export.hpp"
#include "megahost/mesh.hpp"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// The number of a row of `kNorms`; those that code names have an enumerator.
enum class NormKind : uint8_t { layernorm, rmsnorm, rmsnorm_1p };

/// A recipe's name of a norm, and its properties.
struct NormInfo {
  std::string_view name;
  bool centred;  ///< the mean is subtracted
  bool bias;     ///< a bias is added
  bool split;    ///< rows that ranks hold in parts can be normalised
  bool one_plus; ///< the weight is added to 1, and begins at 0
};

/// One fused kernel and one plain form serve every row. A row behind the others is all that another
/// norm of this form takes.
inline constexpr std::array<NormInfo, 4> kNorms{{
    {"layernorm", true, true, false, false},
    {"rmsnorm", false, false, true, false},
    {"rmsnorm_1p", false, false, false, true},
    {"layernorm_no_bias", true, false, false, false},
}};

[[nodiscard]] constexpr const NormInfo& info(NormKind kind) {
  return kNorms.at(static_cast<size_t>(kind));
}

static_assert(info(NormKind::layernorm).name == "layernorm");
static_assert(info(NormKind::rmsnorm).name == "rmsnorm");
static_assert(info(NormKind::rmsnorm_1p).name == "rmsnorm_1p");

/// The kind of this name.  Throws:  mh::Error naming those of kNorms
[[nodiscard]] MH_API NormKind norm_kind(const std::string& name);

struct NormSpec {
  NormKind kind = NormKind::layernorm;
  /// The axis that is normalised: the last dimension. A kind that supports it may have it split by
  /// strategies, as heads are: then each rank holds a part of every row, and rows are normalised as
  /// a whole.
  Axis axis;
  double eps = 1e-5;
  Placement seen; ///< placement of its input; `builder.place(axis)` for the residual stream
};

/// A norm's result, and the sum that it was made of.
struct Normed {
  at::Tensor y, sum;
};

/// A norm of any kind: each row from itself.
///
/// Shapes:  x [..., axis] -> the same
class MH_API NormPart {
public:
  virtual ~NormPart();
  [[nodiscard]] virtual at::Tensor forward(const at::Tensor& x) const = 0;
  /// norm(x + added) and the sum, which the residual stream goes on with; `added` may be undefined:
  /// the sum is x. A norm that makes both in one operation, and so both gradients, overrides this.
  [[nodiscard]] virtual Normed of_sum(const at::Tensor& x, const at::Tensor& added) const;
  /// The norm as the block's part "norms" (StepContext::part).
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, StepContext& context) const;
  /// reader(norm(x)) where nothing else reads the norm's result.
  [[nodiscard]] at::Tensor forward(
      const at::Tensor& x,
      StepContext& context,
      const std::function<at::Tensor(const at::Tensor&)>& reader
  ) const;
};

/// y = (x - mean) / sqrt(var + eps) * weight + bias, or y = x / sqrt(mean(x²) + eps) * weight, where
/// 1 + weight may stand for the weight; the first form may lack its bias.
///
/// Parameters: `weight`, `bias` (where the kind has one) [axis].
/// Memory:  saves the input and one or two float32 values per row
/// Ranks:   collective over the mesh axes that split its axis, if some do; else local
/// Throws:  mh::Error if such an axis is given a norm that cannot
/// Source:  arXiv:1607.06450, arXiv:1910.07467; 1 + weight as in Gemma (arXiv:2403.08295)
class MH_API Norm : public NormPart {
public:
  using NormPart::forward;

  Norm(Builder& builder, const NormSpec& spec);
  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const override;
  [[nodiscard]] Normed of_sum(const at::Tensor& x, const at::Tensor& added) const override;

private:
  NormKind kind_;
  double eps_;
  Parameter* weight_;
  Parameter* bias_ = nullptr;
  std::vector<Group> parts_; // groups of ranks that hold parts of a row; empty: rows are whole
};

/// The operation by itself; `bias` may be undefined.
[[nodiscard]] MH_API at::Tensor normalise(
    NormKind kind, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps
);

} // namespace mh
