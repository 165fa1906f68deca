#pragma once
/// Copies to a device that the host does not wait for.

#include "megahost/export.hpp"

#include <ATen/core/Tensor.h>

namespace mh {

/// The same numbers on `device`. A copy from the host to a GPU goes through pinned memory, so that
/// the host goes on at once; a copy from other memory would stop it until the GPU is there.
[[nodiscard]] MH_API at::Tensor staged(const at::Tensor& tensor, at::Device device);

} // namespace mh
