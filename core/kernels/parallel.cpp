#include "megahost/parallel.hpp"

#include <ATen/Parallel.h>

#ifndef _OPENMP
#error "loops would run on one thread: compile this file with -fopenmp"
#endif

namespace mh {

void parallel_for(
    int64_t begin,
    int64_t end,
    int64_t grain,
    c10::function_ref<void(int64_t begin, int64_t end)> body
) {
  at::parallel_for(begin, end, grain, body);
}

} // namespace mh
