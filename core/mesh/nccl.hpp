#pragma once
/// NCCL, LibTorch's transport between GPUs: a library of its own (`nccl_module.cpp`), because it
/// needs LibTorch's CUDA half, which a machine without GPUs does not have. It is built where
/// `nccl.h` is, and opened when GPUs train.

#include <c10/util/intrusive_ptr.h>

#include <chrono>

namespace c10d {
class Backend;
class Store;
} // namespace c10d

namespace mh {

/// Connects the members of one group, each with the GPU that is its current device. LibTorch's CUDA
/// library must be open.
///
/// Throws:  mh::Error if this build has no NCCL, or the library cannot be opened; c10::Error if
/// there is no GPU
[[nodiscard]] c10::intrusive_ptr<c10d::Backend> make_nccl(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    std::chrono::milliseconds timeout
);

} // namespace mh

/// The library's export: a group's transport, which the caller owns.
extern "C" c10d::Backend*
megahost_make_nccl(c10d::Store* store, int rank, int size, int64_t timeout_ms);
