#pragma once
/// The decays exp(-dt exp(a_log)) of a recurrence's heads, as Mamba-2 begins with them.

#include <megahost/builder.hpp>

#include <cmath>
#include <cstdint>
#include <utility>

namespace mh::hybrid {

/// A number of each head.
inline Parameter* of_heads(Builder& builder, const char* name, int64_t heads, Init init) {
  const Axis axis{axis::heads, heads, 1};
  return &builder.parameter({{name, {axis}, std::move(init)}}, builder.place(axis));
}

/// Steps begin between 0.001 and 0.1, as softplus makes them of the bias.
inline Init initial_steps() {
  return Init::log_uniform(1e-3, 0.1).mapped([](double dt) { return std::log(std::expm1(dt)); });
}

/// Decays begin as exp(-dt a), a between 1 and 16.
inline Init initial_decays() {
  return Init::uniform(1, 16).mapped([](double a) { return std::log(a); });
}

} // namespace mh::hybrid
