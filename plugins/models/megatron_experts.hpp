#pragma once
/// Megatron-LM's names of mixtures of experts, for the plugins that have them.

#include <megahost/nn/decoder.hpp>
#include <megahost/nn/mixture_config.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace mh {

/// Adds the names of a mixture's router and experts, and of the shared feed-forward.
///
/// Args:    C: has the fields of a decoder and those of mixtures
///          theirs, ours: what names begin with, "decoder.layers.0.mlp." and "layers.0.mlp."
/// Source:  megatron-core 0.16.1, transformer/moe/
template <class C>
void add_megatron_experts(
    const C& c, const std::string& theirs, const std::string& ours, std::vector<HfTensor>& map
) {
  map.push_back({theirs + "router.weight", {ours + "router.weight"}});
  if (c.has_bias()) {
    map.push_back({theirs + "router.expert_bias", {ours + "router.bias"}});
  }
  const bool gated = is_gated(activation_kind(c.activation));
  for (int64_t e = 0; e < c.experts; ++e) {
    const std::string expert = theirs + "experts.local_experts." + std::to_string(e) + ".";
    map.push_back(
        {.theirs = expert + "linear_fc1.weight",
         .ours = {ours + (gated ? "experts.gate_up.weight" : "experts.up.weight")},
         .at = {e},
         .entries = gated ? 2 : 0}
    );
    map.push_back(
        {.theirs = expert + "linear_fc2.weight", .ours = {ours + "experts.down.weight"}, .at = {e}}
    );
  }
  if (c.shared_hidden) {
    add_megatron_feed_forward(c, theirs + "shared_experts.", ours + "shared.", map);
  }
  if (c.shared_gate) {
    map.push_back({theirs + "shared_experts.gate_weight", {ours + "shared_gate.weight"}});
  }
}

} // namespace mh
