#include "core/step/deterministic.hpp"

#include "megahost/error.hpp"

#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include <cstdlib>

namespace mh {

std::string set_deterministic(bool on, const Device& device) {
  auto& context = at::globalContext();
  context.setDeterministicAlgorithms(on, /*warn_only=*/false);
  context.setDeterministicFillUninitializedMemory(false);
  context.setDeterministicCuDNN(on);
  context.setBenchmarkCuDNN(false);
  if (!on) {
    return "";
  }
  const std::string line = "deterministic: operations without a deterministic form are refused; ";
  if (device.device().is_cpu()) {
    return line + "on a CPU the others sum in one order anyway, which costs nothing";
  }
  // It is read when the first GEMM makes its handle.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  return line + "attention, index and scatter operations take slower algorithms";
}

void without_nondeterminism(const std::function<void()>& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    const auto end = text.find(" does not have a deterministic implementation");
    if (end == std::string::npos) {
      throw;
    }
    throw Error(
        "operation " + text.substr(0, end) +
            " gives other bits each time, and train.deterministic refuses that",
        "leave out --deterministic, or what uses the operation"
    );
  }
}

} // namespace mh
