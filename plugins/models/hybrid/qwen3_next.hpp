#pragma once
/// transformers' Qwen3Next: gated DeltaNet or attention with a gate, then a feed-forward or a mixture.

#include "config.hpp"

#include <string>
#include <vector>

namespace mh::hybrid {

/// Throws:  mh::Error at a value of a config.json, which says what a hybrid cannot do
[[noreturn]] void refuse(const Value& at, const std::string& what);

/// The keys of its config.json.
[[nodiscard]] HfModel qwen3_next();

/// The names of its tensors, a layer of which is two of ours; empty for other layers. `all` has a
/// letter for each layer.
[[nodiscard]] std::vector<HfTensor> qwen3_next_names(const HybridConfig& c, const std::string& all);

} // namespace mh::hybrid
