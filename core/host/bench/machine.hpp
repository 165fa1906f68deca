#pragma once
/// This machine as a plan knows machines: its rates by measurement.

#include "core/plan/hardware.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace mh {

/// The CPU, shared by `ranks` processes; products of type `type` are measured, in about two
/// seconds.
[[nodiscard]] Machine measure_cpu(at::ScalarType type, int64_t ranks);

} // namespace mh
