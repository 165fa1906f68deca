#pragma once
/// The formulas of an optimizer's pass that kernels of every device know; UpdateRule in
/// megahost/optimizer.hpp has them.

#include <cstdint>

namespace mh {

enum class UpdateKind : uint8_t { adam, sgd, average };

} // namespace mh
