#pragma once
/// How runs on a device are planned: on machines that have none of them, so without opening one.
///
/// ```cpp
/// static mh::PlannedDevice planned() { return {.machine = "mine"}; } // a device names its row
/// ```

#include <cstdint>
#include <string>

namespace mh {

struct PlannedDevice {
  enum class Kernels : uint8_t {
    cpu,   ///< the CPU's: tensors lie in the host's memory
    cuda,  ///< CUDA's
    plain, ///< the plain forms of our operators, on a device of LibTorch's that has none of ours
  };

  Kernels kernels = Kernels::plain; ///< kernels that run there
  bool bf16 =
      true; ///< meaning of `precision = "auto"`; no: bf16 if the machine's processor multiplies it
  std::string machine; ///< row of hardware.toml where --on names none; empty: --on must, or for
                       ///< devices of the host's memory this machine is measured

  [[nodiscard]] bool in_host_memory() const { return kernels == Kernels::cpu; }
};

} // namespace mh
