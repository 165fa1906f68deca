#pragma once
/// A loop shared by the threads of a rank.
///
/// ```cpp
/// mh::parallel_for(0, rows, 16, [&](int64_t begin, int64_t end) {
///   for (int64_t row = begin; row < end; ++row) {
///     sums[row] = 2 * sums[row];
///   }
/// });
/// ```

#include "megahost/export.hpp"

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace mh {

/// Runs `body` on parts of [begin, end), each on its own thread of those that OMP_NUM_THREADS or
/// at::set_num_threads give; on the caller's alone inside another such loop.
///
/// LibTorch's at::parallel_for is a template: in a file compiled without -fopenmp it is a plain
/// loop, and nothing says so. This one is compiled with it.
///
/// Args:    grain: indices of a part, at least
/// Throws:  what body throws first
MH_API void parallel_for(
    int64_t begin,
    int64_t end,
    int64_t grain,
    c10::function_ref<void(int64_t begin, int64_t end)> body
);

} // namespace mh
