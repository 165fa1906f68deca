#pragma once
/// LibTorch's error when a step cannot run on the Meta device, as a sentence for the author of the
/// plugin.

#include <c10/util/Exception.h>

#include <exception>
#include <utility>

namespace mh {

/// Throws:  mh::Error naming the operation without a shape function and how to register one, or
///          the value that was read on the host; the same error if it is neither
[[noreturn]] void explain_missing_shape(const c10::Error& error);

template <class Work>
auto naming_missing_shapes(Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (const c10::Error& error) {
    explain_missing_shape(error);
  }
}

} // namespace mh
