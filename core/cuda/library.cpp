#include "core/cuda/library.hpp"

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <dlfcn.h>

#include <filesystem>

namespace mh {

namespace {

constexpr const char* kName = "libmegahost-cuda.so";

/// The file next to the library that this function is in, or else where the loader finds one.
const cuda::LaunchTable* open_kernels() {
  Dl_info own{};
  dladdr(reinterpret_cast<const void*>(&cuda_kernels), &own);
  const auto path = std::filesystem::path(own.dli_fname).replace_filename(kName);
  void* library = dlopen(path.c_str(), RTLD_NOW);
  if (library == nullptr) {
    library = dlopen(kName, RTLD_NOW);
  }
  void* table = library == nullptr ? nullptr : dlsym(library, "megahost_cuda_table");
  return table == nullptr ? nullptr : reinterpret_cast<decltype(&megahost_cuda_table)>(table)();
}

} // namespace

const cuda::LaunchTable* cuda_kernels() {
  static const cuda::LaunchTable* const kTable = open_kernels();
  return kTable;
}

void* stream_of(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

} // namespace mh
