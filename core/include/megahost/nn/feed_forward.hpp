#pragma once
/// Feed-forward layers and their activations.

#include "megahost/builder.hpp"
#include "megahost/context.hpp"
#include "megahost/export.hpp"
#include "megahost/nn/linear.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace mh {

/// The number of a row of `activations()`; those that code names have an enumerator.
enum class ActivationKind : uint8_t { gelu = 0, gelu_tanh = 1, swiglu = 4 };

/// A recipe's name of an activation, and the function that computes it.
struct ActivationInfo {
  std::string_view name;
  bool gated;              ///< act(gate) * up of two halves
  std::string_view kernel; ///< act of our fused kernel, which saves its input only; empty: `plain`
  at::Tensor (*plain)(const at::Tensor& x);
};

/// A row behind the others is all that another activation takes.
///
/// Source:  arXiv:1606.08415 (GELU), arXiv:2002.05202 (gated), arXiv:2109.08668 (squared ReLU),
///          arXiv:2508.10925 section 2.2 (clamped): with g at most 7 and u within -7 and 7,
///          g sigmoid(1.702 g) (u + 1)
[[nodiscard]] MH_API std::span<const ActivationInfo> activations();

/// The kind of this name.  Throws:  mh::Error naming those there are
[[nodiscard]] MH_API ActivationKind activation_kind(const std::string& name);
[[nodiscard]] MH_API bool is_gated(ActivationKind kind);

/// The activation alone. Gated kinds read gate and up halves packed along the last dimension and
/// return one half's width: act(gate) * up.
[[nodiscard]] MH_API at::Tensor activate(ActivationKind kind, const at::Tensor& x);

/// One of the kinds, or a plugin's own:
///
/// ```cpp
/// mh::ActivationFunction selu(/*gated=*/false, [](const at::Tensor& x) { return at::selu(x); });
/// ```
class MH_API ActivationFunction {
public:
  using Apply = std::function<at::Tensor(const at::Tensor& x)>;

  ActivationFunction(ActivationKind kind) // NOLINT(google-explicit-constructor)
      : ActivationFunction(is_gated(kind), [kind](const at::Tensor& x) {
        return activate(kind, x);
      }) {}

  /// Args:    gated: `apply` reads gate and up halves packed along the last dimension
  ///          apply: differentiable
  ActivationFunction(bool gated, Apply apply)
      : gated_(gated)
      , apply_(std::move(apply)) {}

  [[nodiscard]] bool gated() const { return gated_; }

  [[nodiscard]] at::Tensor operator()(const at::Tensor& x) const { return apply_(x); }

private:
  bool gated_;
  Apply apply_;
};

/// The part of a block after its attention: a feed-forward of any kind.
///
/// Shapes:  x [seq, batch, embed] -> same
class MH_API FeedForwardPart {
public:
  virtual ~FeedForwardPart();
  [[nodiscard]] virtual at::Tensor forward(const at::Tensor& x, StepContext& context) const = 0;

  /// The answer of Block::reads_cache (architecture.hpp): true where rows are computed one by one.
  [[nodiscard]] virtual bool reads_cache() const { return false; }
};

struct FeedForwardSpec {
  Axis embed;
  int64_t hidden = 0;
  ActivationFunction activation = ActivationKind::gelu_tanh;
  bool bias = false;
  double std = 0.02, out_std = 0.02;
};

/// down(activate(up(x))), with `gate` and `up` in one GEMM where the activation is gated.
///
/// Parameters: `gate` (gated kinds), `up`, `down` (weight, bias). Shapes: x [seq, batch, embed] ->
/// same.
class MH_API FeedForward : public FeedForwardPart {
public:
  FeedForward(Builder& builder, const FeedForwardSpec& spec);
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, StepContext& context) const override;

  [[nodiscard]] bool reads_cache() const override { return true; }

private:
  ActivationFunction activation_;
  Linear up_;
  Linear down_;
};

} // namespace mh
