#pragma once
/// The scan's chunks by kernels of our own, on a CPU in float32 and bfloat16: a chunk's matrices stay
/// in the caches, and threads share chunks.
///
/// Memory:  some hundred kilobytes for each thread, in addition to the results

#include "scan.hpp"

namespace mh::hybrid {

/// Whether there are kernels for these inputs; elsewhere the scan is made of LibTorch's operations.
/// So it is on the Meta device for a target that is the CPU: there they count memory and GEMMs.
[[nodiscard]] bool fits_cpu_scan(const ScanInputs& in);

/// Writes `decays` and `updates` as chunk_updates gives them.
void cpu_updates(
    const ScanInputs& in,
    const std::vector<TokenRun>& chunks,
    const at::Tensor& decays,
    const at::Tensor& updates
);

/// From the gradients of its results to those in `d` (x, dt, log_decay, b).
void cpu_updates_backward(
    const ScanInputs& in,
    const std::vector<TokenRun>& chunks,
    const at::Tensor& decays,
    const at::Tensor& ddecays,
    const at::Tensor& dupdates,
    const ScanInputs& d
);

/// Writes `y` as chunk_outputs gives it.
void cpu_outputs(
    const ScanInputs& in,
    const std::vector<TokenRun>& chunks,
    const at::Tensor& states,
    const at::Tensor& y
);

/// From the gradient of its result to those in `d` (all) and `dstates`.
void cpu_outputs_backward(
    const ScanInputs& in,
    const std::vector<TokenRun>& chunks,
    const at::Tensor& states,
    const at::Tensor& y,
    const at::Tensor& dy,
    const at::Tensor& dstates,
    const ScanInputs& d
);

} // namespace mh::hybrid
