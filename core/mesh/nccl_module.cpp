#define USE_C10D_NCCL
#include "core/mesh/nccl.hpp"

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <cstdlib>

__attribute__((visibility("default"))) c10d::Backend*
megahost_make_nccl(c10d::Store* store, int rank, int size, int64_t timeout_ms) {
  using Nccl = c10d::ProcessGroupNCCL;
  // After a failure LibTorch's watchdog sleeps four times this long before it ends the process, so
  // that a flight recorder may write. There is none unless the environment asks for it.
  setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "100", /*overwrite=*/0);
  auto options = Nccl::Options::create();
  options->timeout = std::chrono::milliseconds(timeout_ms);
  return c10::make_intrusive<Nccl>(
             c10::intrusive_ptr<c10d::Store>::reclaim_copy(store), rank, size, std::move(options)
  )
      .release();
}
