#pragma once
/// Tensors that recurrent layers of Megatron-LM join, which `torch_dist` has in parts.
///
/// Source:  megatron-core 0.16.1, ssm/mamba_mixer.py, ssm/gated_delta_net.py

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// Some rows of a joined tensor.
struct JoinedPart {
  std::string name; ///< "mixer.in_proj.weight.z"
  int64_t row = 0, rows = 0;
};

/// The parts of a layer's tensor, "mixer.in_proj.weight", each behind the one before it; empty if it
/// is not joined, or if so many rows have no such parts.
///
/// inner, heads:  columns of the layer's out_proj.weight, and rows of its A_log
[[nodiscard]] std::vector<JoinedPart>
joined_parts(std::string_view name, int64_t rows, int64_t inner, int64_t heads);

/// Whether a layer's tensor of this name is joined.
[[nodiscard]] bool is_joined(std::string_view name);

} // namespace mh
