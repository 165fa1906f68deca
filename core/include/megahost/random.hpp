#pragma once
/// Counter-based random numbers: each value is a function of (key, index), so initial values and
/// dropout masks are the same under every layout and need no generator state.
///
/// Source:  Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), Philox4x32-10

#include "megahost/export.hpp"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace mh {

/// A key from the run's seed and a name (a parameter's, or a dropout site's).
[[nodiscard]] MH_API uint64_t random_key(uint64_t seed, std::string_view name);

/// Four random words for one counter.
[[nodiscard]] MH_API std::array<uint32_t, 4>
philox(uint64_t key, uint64_t counter_low, uint64_t counter_high);

/// Standard normal numbers, float32: number i depends on (key, i) only.
MH_API void standard_normals(uint64_t key, int64_t first, std::span<double> ret_values);

/// Numbers in [0, 1), multiples of 2^-24: number i depends on (key, i) only.
MH_API void standard_uniforms(uint64_t key, int64_t first, std::span<double> ret_values);

/// Fills a slice of a global tensor: `write(first, ret_values)` gives the values of a part of a
/// row, whose first element has the index `first` in the global tensor (row-major). Threads call it
/// at the same time. Nothing is done on the Meta device.
///
/// Shapes:  slice [n0, n1, ...] at `offset` of a tensor of `global_shape`
/// Dtype:   any float
MH_API void fill_rows(
    at::Tensor slice,
    const std::vector<int64_t>& global_shape,
    const std::vector<int64_t>& offset,
    const std::function<void(int64_t first, std::span<double> ret_values)>& write
);

/// Fills a slice of a global tensor with N(0, std): element i of the global tensor (row-major)
/// depends on (key, i) only. Nothing is done on the Meta device.
///
/// Shapes:  slice [n0, n1, ...] at `offset` of a tensor of `global_shape`
/// Dtype:   any float; values are computed in float32
MH_API void fill_normal(
    at::Tensor slice,
    uint64_t key,
    double std,
    const std::vector<int64_t>& global_shape,
    const std::vector<int64_t>& offset
);

} // namespace mh
