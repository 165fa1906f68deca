#pragma once
/// The linear layer: one GEMM, its placements and its gradients, in one autograd Function.
///
/// ```cpp
/// mh::Linear qkv(builder, {
///     .in = {mh::axis::embed, 4096},
///     .outs = {
///         {"q", {mh::axis::heads, 32, 128}},
///         {"k", {mh::axis::kv_heads, 8, 128}},
///         {"v", {mh::axis::kv_heads, 8, 128}},
///     },
/// });
/// auto parts = qkv.parts(qkv.forward(x, context)); // q, k, v
/// ```

#include "megahost/builder.hpp"
#include "megahost/context.hpp"
#include "megahost/export.hpp"

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mh {

struct LinearSpec {
  struct Out {
    std::string name; ///< the piece's; parameters are `name.weight` and `name.bias`
    Axis axis;
    std::optional<double> std{}; ///< for this piece's initial weights; the spec's if absent
  };

  Axis in;
  std::vector<Out> outs; ///< pieces that share the GEMM, packed along the output
  bool bias = false;
  double std = 0.02; ///< standard deviation of the initial weights
  bool fp8 = true;   ///< follows the run into FP8; routers and output layers do not
};

/// y = x Wᵀ + b over the last dimension.
///
/// The placement follows from the axes: an output axis that a strategy maps splits the weight by
/// rows and the input is gathered first; a mapped input axis splits it by columns and the output's
/// partial sums are reduced. For backward the local shard of the input is saved (and gathered
/// again, overlapped with the GEMM). The weight gradient is added straight to the main gradient, or
/// left in the context's weight queue. In FP8 input and weight are rounded to E4M3, the output's
/// gradient to E5M2, and the input is saved in 8 bits.
///
/// Shapes:  x [seq, batch, in] (this rank's part) -> [seq, batch, outs...] (this rank's parts,
/// packed)
class MH_API Linear {
public:
  Linear(Builder& builder, const LinearSpec& spec);

  /// A linear layer over an existing weight (tied embeddings): `weight` has the pieces' rows.
  Linear(Builder& builder, const LinearSpec& spec, Parameter& weight);

  [[nodiscard]] at::Tensor forward(const at::Tensor& x, StepContext& context) const;

  /// Cuts a result of `forward` into its pieces along the last dimension; no copy. For layers that
  /// made their own weight.
  [[nodiscard]] std::vector<at::Tensor> parts(const at::Tensor& y) const;

  /// How the GEMM's operands lie; see the file comment of placement.hpp.
  struct Plan {
    Placement in;            ///< the input arrives like this
    Placement need;          ///< and is converted to this before the GEMM
    Placement made;          ///< the GEMM makes this
    Placement out;           ///< and the result is converted to this
    bool bias_after = false; ///< the bias is added after the partial sums are reduced
  };

  [[nodiscard]] const Plan& plan() const { return plan_; }

  [[nodiscard]] Parameter& weight() const { return *weight_; }

private:
  void make_plan(Builder& builder, const LinearSpec& spec);

  Plan plan_;
  Parameter* weight_ = nullptr;
  Parameter* bias_ = nullptr;
  std::vector<int64_t> widths_;   // the pieces' local widths
  std::shared_ptr<Fp8State> fp8_; // null: the GEMM is in the weight's type
  int64_t fp8_index_ = 0;         // this GEMM's index in it
};

} // namespace mh
