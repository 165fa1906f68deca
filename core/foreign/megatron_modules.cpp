#include "core/foreign/megatron_modules.hpp"

#include <algorithm>
#include <array>
#include <charconv>

namespace mh {

namespace {

constexpr std::string_view kPredictionModules = "mtp.layers.";
constexpr int kExpertsPart = 17; ///< the index of experts among the parts of a layer

/// The index of the longest of these that a text begins with; 0 if there is none.
template <size_t N>
int longest_beginning(const std::array<std::string_view, N>& all, std::string_view text) {
  size_t best = 0;
  for (size_t i = 0; i < N; ++i) {
    if (!all[i].empty() && text.starts_with(all[i]) &&
        (!text.starts_with(all[best]) || all[i].size() > all[best].size())) {
      best = i;
    }
  }
  return static_cast<int>(best);
}

/// The place of a tensor in its layer: part, expert and matrix.
std::tuple<int, int64_t, int64_t>
layer_key(std::string_view body, const ModuleOrder& order, bool is_latent) {
  constexpr std::array<std::string_view, 21> kParts{
      "input_layernorm.",
      "self_attention.linear_proj.",
      "", // a fused input_layernorm
      "self_attention.linear_q",
      "", // a fused q_layernorm
      "self_attention.linear_q_up_proj.",
      "self_attention.linear_kv_down_proj.",
      "", // a fused kv_layernorm
      "self_attention.linear_kv_up_proj.",
      "self_attention.q_layernorm.",
      "self_attention.k", // k_layernorm, kv_layernorm
      "pre_cross_attn_layernorm.",
      "cross_attention.linear_proj.",
      "cross_attention.linear_q.",
      "cross_attention.linear_kv.",
      "pre_mlp_layernorm.",
      "mlp.router.",
      "mlp.experts.",
      "mlp.shared_experts.gate_weight",
      "mlp.shared_experts.",
      "mlp."};
  int part = longest_beginning(kParts, body);
  if (order.fused && part == 0 && !is_latent) {
    part = 2;
  } else if (order.fused && is_latent && part == 9) {
    part = 4;
  } else if (order.fused && is_latent && part == 10) {
    part = 7;
  }
  const int64_t expert = number_after(body, "local_experts.").value_or(0);
  const int64_t matrix = body.find("linear_fc2.") == std::string_view::npos ? 0 : 1;
  return order.grouped && part == kExpertsPart ? std::tuple(part, matrix, expert)
                                               : std::tuple(part, expert, matrix);
}

} // namespace

std::optional<int64_t> number_after(std::string_view name, std::string_view word) {
  const size_t at = name.find(word);
  int64_t number = 0;
  if (at == std::string_view::npos) {
    return std::nullopt;
  }
  const char* begin = name.data() + at + word.size();
  const auto read = std::from_chars(begin, name.data() + name.size(), number);
  return read.ptr == begin ? std::nullopt : std::optional(number);
}

ModuleKey module_key(const std::string& name, const ModuleOrder& order, bool is_latent) {
  constexpr std::array<std::string_view, 13> kTop{
      "embedding.word",
      "embedding.position",
      "embedding.tokentype",
      "encoder.layers.",
      "encoder.final",
      "decoder.layers.",
      "decoder.final",
      kPredictionModules,
      "lm_head.dense.",
      "lm_head.layer_norm.",
      "output_layer.",
      "binary_head.",
      "pooler."};
  constexpr std::array<std::string_view, 4> kPredictionParts{
      "enorm.", "hnorm.", "eh_proj.", "transformer_layer."}; // and final_layernorm
  const auto index_of = [](const auto& all, std::string_view text) {
    const auto* at = std::ranges::find_if(all, [&](auto one) { return text.starts_with(one); });
    return static_cast<int>(at - all.begin());
  };
  const int bias = name.ends_with(".bias") ? 1 : 0;
  const int modules = index_of(kTop, name);
  const std::string_view top = modules < std::ssize(kTop) ? kTop[static_cast<size_t>(modules)] : "";
  if (!top.ends_with(".layers.")) {
    return {modules, 0, 0, 0, 0, 0, bias};
  }
  const size_t before = top.size();
  const int64_t layer = number_after(name, name.substr(0, before)).value_or(0);
  std::string body = name.substr(std::min(name.size(), name.find('.', before) + 1));
  int section = 0;
  if (top == kPredictionModules) {
    section = index_of(kPredictionParts, body);
    if (section != 3) {
      return {modules, layer, section, 0, 0, 0, bias};
    }
    body.erase(0, kPredictionParts[3].size());
  }
  const auto [part, first, second] = layer_key(body, order, is_latent);
  return {modules, layer, section, part, first, second, bias};
}

} // namespace mh
