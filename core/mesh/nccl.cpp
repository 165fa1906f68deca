#include "core/mesh/nccl.hpp"

#include "megahost/error.hpp"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <dlfcn.h>

#include <filesystem>

namespace mh {

namespace {

/// The file next to the library or program that this function is in.
std::string nccl_library() {
  Dl_info own{};
  dladdr(reinterpret_cast<const void*>(&make_nccl), &own);
  return std::filesystem::path(own.dli_fname).replace_filename("libmegahost-nccl.so");
}

decltype(&megahost_make_nccl) open_nccl() {
  const std::string path = nccl_library();
  void* library = dlopen(path.c_str(), RTLD_NOW);
  void* make = library == nullptr ? nullptr : dlsym(library, "megahost_make_nccl");
  if (make == nullptr) {
    throw Error(
        std::string("GPUs of several processes need NCCL, which cannot be opened: ") + dlerror(),
        "build megahost where nccl.h is found (./megahost installs it where there is a GPU), or "
        "set device = \"cpu\""
    );
  }
  return reinterpret_cast<decltype(&megahost_make_nccl)>(make);
}

} // namespace

c10::intrusive_ptr<c10d::Backend> make_nccl(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    std::chrono::milliseconds timeout
) {
  static const auto make = open_nccl();
  return c10::intrusive_ptr<c10d::Backend>::reclaim(make(store.get(), rank, size, timeout.count()));
}

} // namespace mh
