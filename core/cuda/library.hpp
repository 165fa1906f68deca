#pragma once
/// The library of GPU kernels, `libmegahost-cuda.so`: it is built where nvcc is, and lies next to
/// the program's library. Where there is none, operators run in the forms that are made of
/// LibTorch's.

#include "core/cuda/table.hpp"
#include "megahost/export.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

namespace mh {

/// The kernels, opened when first asked for; null: there are none.
[[nodiscard]] MH_API const cuda::LaunchTable* cuda_kernels();

/// The device's current stream, in the form that kernels take.
[[nodiscard]] void* stream_of(at::Device device);

/// Starts a kernel of the table on the device's current stream.
///
/// Throws:  c10::Error with the CUDA runtime's sentence if it cannot start
template <class Call>
void start_kernel(
    const char* (*kernel)(const Call&, void* stream), const Call& call, at::Device device
) {
  const c10::DeviceGuard guard(device);
  const char* problem = kernel(call, stream_of(device));
  TORCH_CHECK(problem == nullptr, "a kernel cannot start on ", device, ": ", problem);
}

} // namespace mh
