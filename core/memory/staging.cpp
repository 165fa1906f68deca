#include "core/memory/staging.hpp"

namespace mh {

at::Tensor staged(const at::Tensor& tensor, at::Device device) {
  const bool crosses = tensor.is_cpu() && device.is_cuda();
  return crosses ? tensor.pin_memory().to(device, /*non_blocking=*/true) : tensor.to(device);
}

} // namespace mh
