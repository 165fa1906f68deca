#pragma once
/// The cost of a call of one of our operators, from its arguments: for a plan on the Meta device,
/// and for rates.

#include <ATen/core/ivalue.h>

#include <string_view>

namespace mh::ops {

struct Cost {
  double flops = 0; ///< FLOPs of GEMMs and of element-wise arithmetic
  double bytes = 0; ///< read and written, each tensor once
};

/// Computes a cost from the arguments in the order of the operator's schema.
using CostFunction = Cost (*)(c10::ArrayRef<const c10::IValue> arguments);

/// The cost of "megahost::NAME", or nullptr if there is no such operator.
[[nodiscard]] CostFunction find_cost(std::string_view name);

} // namespace mh::ops
