#pragma once
/// Parallel strategies: which logical axes lie along which mesh axis, and the mechanism that needs.
///
/// ```cpp
/// class Tensor : public mh::Strategy { // Megatron's tensor parallelism is four rules
/// public:
///   struct Config {
///     int64_t tensor = 1;
///   };
///   static void fields(mh::Fields<Config>& f) {
///     f.add("tensor", &Config::tensor, "tensor-parallel degree")
///         .at_least(1)
///         .degree(mh::MeshAxis::tp);
///   }
///   Tensor(const Config&, const Args&) {}
///   void rules(mh::Rules& rules) const override {
///     using namespace mh::axis;
///     for (const auto logical : {heads, kv_heads, mlp, vocab}) {
///       rules.features.push_back({logical, mh::MeshAxis::tp});
///     }
///   }
/// };
/// ```
///
/// Its fields are keys of a recipe's section `parallel`, as they are written there: begin them with
/// the strategy's name, for all strategies that are found share the section. It is in force, and
/// its rules apply, where a recipe
///   - gives a degree that it declares a value above 1;
///   - or, where it has `static bool in_force(const Config&)`, this says so;
///   - or names it in `parallel.strategies`.
/// A mesh axis of several ranks that no rule uses is refused.
///
/// A strategy may say more of itself, in static functions:
///   - `void conditions(mh::Conditions&)`: what of a whole recipe it refuses (conditions.hpp);
///   - `std::vector<mh::Table> searched(const mh::SearchFacts&)`: values of its own keys that
///     `plan --search` tries. Degrees are asked for first, tp, cp, pp, then dp takes the ranks that
///     are left, then all others are asked; `facts.shape` has what was chosen before. Degrees that
///     do not divide the ranks that are left are not tried;
///   - `std::vector<mh::Table> changes(const mh::SearchFacts&, const mh::Value& parallel)`: single
///     changes of a recipe that `plan` tries for its advice, as keys of `parallel`.

#include "megahost/export.hpp"
#include "megahost/kind.hpp"
#include "megahost/mesh.hpp"
#include "megahost/nn/attention_kernel.hpp"
#include "megahost/placement.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace mh {

class StepContext;

/// Attention between tokens that lie on several ranks: what a strategy that splits samples supplies
/// in addition to its rules (`rules.attention`). Kernels for it are in nn/attention_kernel.hpp.
class MH_API AttentionMethod {
public:
  virtual ~AttentionMethod();

  /// softmax(scale q kᵀ + bias + mask) v over the tokens of whole samples, differentiable, in the
  /// mask's bias and sinks too, which are of all of this rank's heads; the bias is of all distances.
  ///
  /// Shapes:  q [queries, batch, heads, dim]; k, v [keys, batch, kv_heads, dim] of this rank's
  ///          tokens -> q's. Queries and keys may be of two sequences with lengths of their own.
  ///          The mask's indices and segments, too, are of this rank's tokens
  /// Ranks:   collective over the mesh axis that splits samples
  [[nodiscard]] virtual at::Tensor attend(
      const at::Tensor& q,
      const at::Tensor& k,
      const at::Tensor& v,
      double scale,
      const ops::KernelMask& mask,
      const ops::KernelDropout& dropout,
      StepContext& context
  ) const = 0;
};

class MH_API Strategy {
public:
  static constexpr Kind kKind = Kind::strategy;

  struct Args {
    MeshShape shape; ///< all degrees of the run
  };

  virtual ~Strategy();

  /// Adds this strategy's placement rules, and its mechanism if it has one.
  virtual void rules(Rules& rules) const = 0;
};

} // namespace mh
