#pragma once
/// The activations that kernels of every device know.

#include <cstdint>

namespace mh {

enum class Activate : uint8_t { silu, gelu, gelu_tanh };

} // namespace mh
