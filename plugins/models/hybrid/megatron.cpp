// Megatron-LM's names of a hybrid's tensors: those of its MambaModel.

#include "../megatron_experts.hpp"
#include "config.hpp"

#include <megahost/nn/decoder.hpp>

#include <string>
#include <string_view>
#include <utility>

namespace mh::hybrid {
namespace {

constexpr std::string_view kLayers = "decoder.layers.";

bool any_layer(const HybridConfig& c, char letter) {
  for (int64_t i = 0; i < c.layers; ++i) {
    if (c.kind(i) == letter) {
      return true;
    }
  }
  return false;
}

/// Whether Megatron-LM has these layers. The norm behind its recurrence has an epsilon of its own.
bool has_counterpart(const HybridConfig& c) {
  constexpr int64_t kTaps = 4;
  constexpr double kNormEps = 1e-5;
  if (any_layer(c, kMamba) && (c.mamba_taps != kTaps || !c.mamba_conv_bias || c.bias ||
                               c.mamba_least_step != 0 || c.norm_eps != kNormEps)) {
    return false;
  }
  return !any_layer(c, kDelta) && c.mtp_layers == 0 &&
         !(any_layer(c, kMixture) && (c.bias || c.expert_latent));
}

/// Adds the names of a mixer of Mamba-2, of which `torch_dist` has what it joins in parts.
void add_mixer(std::vector<HfTensor>& map, const std::string& theirs, const std::string& ours) {
  const auto add = [&](const std::string& their_name, const std::string& our_name) {
    map.push_back({theirs + their_name, {ours + our_name}});
  };
  const std::pair<std::string, std::string> parts[] = {
      {"z", "z"}, {"x", "x"}, {"B", "b"}, {"C", "c"}, {"dt", "dt"}};
  add("norm.weight", "norm.weight");
  for (const auto& [their_part, our_part] : parts) {
    add("mixer.in_proj.weight." + their_part, "mamba." + our_part + ".weight");
  }
  for (const std::string what : {"weight", "bias"}) {
    for (const auto& [their_part, our_part] : {parts[1], parts[2], parts[3]}) {
      add("mixer.conv1d." + what + "." + their_part, "mamba.convolution." + our_part + "." + what);
    }
  }
  add("mixer.dt_bias", "mamba.dt_bias");
  add("mixer.A_log", "mamba.a_log");
  add("mixer.D", "mamba.d");
  add("mixer.norm.weight", "mamba.norm.weight");
  add("mixer.out_proj.weight", "mamba.out.weight");
}

/// Adds a tensor of a decoder's layer if the hybrid's layer has this part. Its one norm stands for
/// either one of a decoder's.
void add_if_of(char kind, std::vector<HfTensor>& map, HfTensor one) {
  const std::string_view part =
      std::string_view(one.theirs).substr(one.theirs.find('.', kLayers.size()) + 1);
  const bool attends = part.starts_with("self_attention.") || part.starts_with("input_layernorm.");
  if (kind == kMamba || attends != (kind == kAttention)) {
    return;
  }
  for (std::string& ours : one.ours) {
    for (const std::string_view norm : {".attention_norm.", ".mlp_norm."}) {
      if (const size_t at = ours.find(norm); at != std::string::npos) {
        ours.replace(at, norm.size(), ".norm.");
      }
    }
  }
  map.push_back(std::move(one));
}

} // namespace

std::vector<HfTensor> megatron_names(const HybridConfig& c) {
  if (!has_counterpart(c)) {
    return {};
  }
  const auto feed_forward =
      [&c](int64_t layer, const std::string& theirs, const std::string& ours, auto& map) {
        if (c.kind(layer) == kMixture) {
          add_megatron_experts(c, theirs + "mlp.", ours + "mlp.", map);
        } else {
          add_megatron_feed_forward(c, theirs + "mlp.", ours + "mlp.", map);
        }
      };
  constexpr std::string_view kFinal = "decoder.final_layernorm.";
  std::vector<HfTensor> map;
  for (HfTensor& one : mh::megatron_names(c, feed_forward)) {
    if (one.theirs.starts_with(kLayers)) {
      const char kind = c.kind(std::stoll(one.theirs.substr(kLayers.size())));
      add_if_of(kind, map, std::move(one));
      continue;
    }
    if (one.theirs.starts_with(kFinal)) {
      one.theirs.replace(0, kFinal.size(), "decoder.final_norm.");
    }
    map.push_back(std::move(one));
  }
  for (int64_t i = 0; i < c.layers && !map.empty(); ++i) {
    if (c.kind(i) == kMamba) {
      const std::string number = std::to_string(i) + ".";
      add_mixer(map, std::string(kLayers) + number, "layers." + number);
    }
  }
  return map;
}

} // namespace mh::hybrid
