#define USE_C10D_GLOO
#include "core/mesh/gloo.hpp"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace mh {

c10::intrusive_ptr<c10d::Backend> make_gloo(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    const std::string& interface,
    std::chrono::milliseconds timeout
) {
  using Gloo = c10d::ProcessGroupGloo;
  auto options = Gloo::Options::create(timeout);
  const bool address = interface.find_first_of(".:") != std::string::npos;
  options->devices.push_back(
      interface.empty() ? Gloo::createDefaultDevice()
      : address         ? Gloo::createDeviceForHostname(interface)
                        : Gloo::createDeviceForInterface(interface)
  );
  options->threads = 1;
  return c10::make_intrusive<Gloo>(store, rank, size, std::move(options));
}

} // namespace mh
