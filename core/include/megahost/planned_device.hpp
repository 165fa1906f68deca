#pragma once
/// How runs on a device are planned: on machines that have none of them, so without opening one.
///
/// ```cpp
/// static mh::PlannedDevice planned() { return {.machine = "mine"}; } // of a device: a row's name
/// ```

#include <string>

namespace mh {

struct PlannedDevice {
  bool host = false; ///< tensors lie in the host's memory, and the CPU's kernels run
  bool bf16 =
      true; ///< what `precision = "auto"` is; no: where the machine's processor multiplies it
  std::string machine; ///< row of hardware.toml where --on names none; empty: --on must, or for
                       ///< devices of the host's memory this machine is measured
};

} // namespace mh
