#pragma once
/// An optimizer's pass on a GPU: one launch for all parameters whose types have a kernel.

#include "core/kernels/update_plain.hpp"

#include <vector>

namespace mh::ops {

/// Updates what the kernel takes; `update_plainly` gets the rest, and all where there is no kernel.
void update_on_cuda(const UpdateNumbers& numbers, const std::vector<UpdateItemView>& items);

} // namespace mh::ops
