#pragma once
/// Parallel strategies: which logical axes lie along which mesh axis, and the mechanism that needs.
///
///   class Tensor : public mh::Strategy {   // megatron's tensor parallelism is four rules
///     void rules(mh::Rules& r) const override {
///       for (auto a : {axis::heads, axis::kv_heads, axis::mlp, axis::vocab})
///       r.features.push_back({a, MeshAxis::tp});
///     }

#include "megahost/export.hpp"
#include "megahost/kind.hpp"
#include "megahost/mesh.hpp"
#include "megahost/placement.hpp"

#include <cstdint>

namespace mh {

class MH_API Strategy {
public:
  static constexpr Kind kKind = Kind::strategy;

  struct Args {
    MeshShape shape; ///< all degrees of the run
  };

  virtual ~Strategy();

  /// Adds this strategy's placement rules.
  virtual void rules(Rules& rules) const = 0;
};

} // namespace mh
