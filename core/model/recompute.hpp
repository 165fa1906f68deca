#pragma once
/// Running something now and again in the backward pass, keeping its inputs only.

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace mh {

using Computation = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// The results of `run(inputs)`, differentiable; `run` is called again when gradients are wanted.
/// Parameters that `run` uses accumulate their gradients during that second call. Results that are
/// not floating point carry no gradient.
[[nodiscard]] std::vector<at::Tensor>
recomputed(const Computation& run, const std::vector<at::Tensor>& inputs);

/// The inputs of a part that is kept. Each is a node of its own: what several uses in the part add
/// to its gradient is summed before it meets the gradients of other uses, as it is where the part
/// is recomputed. So both ways give the same bits.
[[nodiscard]] std::vector<at::Tensor> kept_inputs(const std::vector<at::Tensor>& inputs);

/// reader(run(inputs)), where nothing else reads what `run` returns: its memory is freed after
/// `reader`, and filled by running again when the gradient of what `reader` returned arrives.
///
/// Source:  Megatron Core, tensor_parallel/random.py, CheckpointWithoutOutput
[[nodiscard]] at::Tensor recomputed_for(
    const std::function<at::Tensor(const std::vector<at::Tensor>&)>& run,
    const std::vector<at::Tensor>& inputs,
    const std::function<at::Tensor(const at::Tensor&)>& reader
);

} // namespace mh
