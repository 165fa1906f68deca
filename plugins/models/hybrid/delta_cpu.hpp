#pragma once
/// The delta rule's chunks by kernels of our own, on a CPU in float32 and bfloat16: a chunk's
/// matrices stay in the caches, and threads share chunks.
///
/// Memory:  about a megabyte for each thread, in addition to the results

#include "delta_rule.hpp"

namespace mh::hybrid {

/// Whether there are kernels for these inputs; elsewhere the rule is made of LibTorch's operations.
/// So it is on the Meta device for a target that is the CPU: there they count memory and GEMMs.
[[nodiscard]] bool fits_cpu_delta(const DeltaInputs& in);

/// The whole rule: the outputs of samples that begin with an empty state and lie on this rank whole.
/// The state passes from chunk to chunk without the matrices that others would need to continue it.
///
/// Shapes:  -> y [seq, batch, heads, value dim]
/// Dtype:   y as beta
/// Memory:  saves the inputs; in the type of products, for each chunk and head, w and u, what is
///          written, the state and a C by C matrix
[[nodiscard]] at::Tensor cpu_delta_rule(const DeltaInputs& in, const std::vector<TokenRun>& rows);

/// The chunks of delta_chunks, of which `transitions`, `updates`, `in` and `solved` are set.
[[nodiscard]] DeltaChunks
cpu_delta_chunks(const DeltaInputs& in, const std::vector<TokenRun>& rows);

/// The outputs of delta_outputs.
[[nodiscard]] at::Tensor cpu_delta_outputs(
    const DeltaChunks& of, const at::Tensor& states, const std::vector<TokenRun>& rows
);

} // namespace mh::hybrid
