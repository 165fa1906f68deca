#include "core/foreign/megatron_names.hpp"

#include "core/checkpoint/assembled.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <utility>

namespace mh {

namespace {

constexpr std::string_view kStacks[] = {"decoder.layers.", "encoder.layers."};
constexpr std::string_view kPredictions = "mtp.layers."; // multi-token prediction
constexpr std::string_view kPredictionLayer = "transformer_layer.";
constexpr std::string_view kExperts = "mlp.experts.experts.";
constexpr std::string_view kLocalExperts = "mlp.experts.local_experts.";
constexpr std::string_view kMoments = "optimizer.state.";

using Renaming = std::pair<std::string_view, std::string_view>;

/// Transformer Engine has a norm in the linear layer after it.
constexpr Renaming kNorms[] = {
    {"self_attention.linear_qkv.layer_norm_", "input_layernorm."},
    {"self_attention.linear_q_up_proj.layer_norm_", "self_attention.q_layernorm."},
    {"self_attention.linear_kv_up_proj.layer_norm_", "self_attention.kv_layernorm."},
    {"mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm."},
    {"mixer.in_proj.layer_norm_", "norm."}};

/// Modules that T5 has twice, and so their tensors.
constexpr Renaming kSecondNames[] = {
    {"lm_head.output_layer.", "output_layer."},
    {"position_embeddings.", "embedding.position_embeddings."}};

constexpr std::string_view kOldModel = "language_model.";
constexpr Renaming kOldTrunks[] = {{"encoder.", "decoder."}, {"transformer.", "decoder."}};

constexpr Renaming kOldParts[] = {
    {"attention.query_key_value.", "self_attention.linear_qkv."},
    {"self_attention.query_key_value.", "self_attention.linear_qkv."},
    {"attention.dense.", "self_attention.linear_proj."},
    {"self_attention.dense.", "self_attention.linear_proj."},
    {"mlp.dense_h_to_4h.", "mlp.linear_fc1."},
    {"mlp.dense_4h_to_h.", "mlp.linear_fc2."},
    {"post_attention_layernorm.", "pre_mlp_layernorm."}};

/// Replaces what a text begins with, if it is one of these, and says whether it was.
template <size_t N>
bool rename_beginning(std::string& ret_text, const Renaming (&renamings)[N]) {
  for (const auto& [old, now] : renamings) {
    if (ret_text.starts_with(old)) {
      ret_text.replace(0, old.size(), now);
      return true;
    }
  }
  return false;
}

/// The other name of a tensor that T5 has twice; else empty.
std::string second_name(const std::string& name) {
  for (const auto& [second, first] : kSecondNames) {
    if (name.starts_with(first)) {
      return std::string(second) + name.substr(first.size());
    }
  }
  return "";
}

/// Takes "17." off a text, or nothing.
std::string take_number(std::string& ret_text) {
  const size_t end = ret_text.find_first_not_of("0123456789");
  if (end == 0 || end == std::string::npos || ret_text[end] != '.') {
    return "";
  }
  std::string number = ret_text.substr(0, end);
  ret_text.erase(0, end + 1);
  return number;
}

/// "decoder.layers.3.mlp.x" is layer 3 of "decoder.layers." and "mlp.x". The layer of a module of
/// multi-token prediction has no number of its own: "mtp.layers.0.transformer_layer." and "mlp.x".
struct LayerName {
  std::string trunk{}; ///< empty: it is no layer's
  std::string layer{}, expert{}, body;

  /// Names of this layer's tensors begin so.
  [[nodiscard]] std::string before() const { return trunk + layer + (layer.empty() ? "" : "."); }
};

LayerName parsed(const std::string& name) {
  LayerName found{.body = name};
  if (const std::string_view stack = layer_stack(name); !stack.empty()) {
    found.trunk = stack;
    found.body.erase(0, stack.size());
    found.layer = take_number(found.body);
  } else {
    found.trunk = take_prediction(found.body);
  }
  if (found.trunk.empty()) {
    return found;
  }
  if (found.body.starts_with(kLocalExperts)) {
    std::string rest = found.body.substr(kLocalExperts.size());
    found.expert = take_number(rest);
    found.body = std::string(kExperts) + rest;
  }
  return found;
}

} // namespace

std::string_view layer_stack(std::string_view name) {
  const auto* found =
      std::ranges::find_if(kStacks, [name](auto stack) { return name.starts_with(stack); });
  return found == std::end(kStacks) ? std::string_view() : *found;
}

std::string take_prediction(std::string& ret_name) {
  std::string rest = ret_name;
  if (!rest.starts_with(kPredictions)) {
    return "";
  }
  rest.erase(0, kPredictions.size());
  const std::string number = take_number(rest);
  if (number.empty() || !rest.starts_with(kPredictionLayer)) {
    return "";
  }
  ret_name = rest.substr(kPredictionLayer.size());
  return std::string(kPredictions) + number + "." + std::string(kPredictionLayer);
}

size_t MegatronName::stacked() const {
  size_t count = 0;
  for (size_t at = text.find("{}"); at != std::string::npos; at = text.find("{}", at + 2)) {
    ++count;
  }
  return count;
}

std::string MegatronName::at(const std::vector<int64_t>& indices) const {
  std::string name;
  size_t done = 0;
  for (const int64_t index : indices) {
    const size_t hole = text.find("{}", done);
    name += text.substr(done, hole - done) + std::to_string(index);
    done = hole + 2;
  }
  return name + text.substr(done);
}

MegatronName megatron_name(std::string_view stored) {
  std::string rest(stored);
  std::string before;
  if (rest.starts_with(kMoments)) {
    rest.erase(0, kMoments.size());
    std::string state = rest.substr(0, rest.find('.'));
    rest.erase(0, std::min(rest.size(), state.size() + 1));
    before = "optimizer." + (state == "param" || state == "fp32_param" ? "master" : state) + ".";
  }
  while (rest.starts_with("module.")) { // wrappers, which NeMo saves, too
    rest.erase(0, std::string_view("module.").size());
  }
  MegatronName name;
  if (rest.find("{}") != std::string::npos) { // it would be taken for a dimension
    name.text = before + rest;
    return name;
  }
  std::string trunk = take_prediction(rest);
  if (const std::string stack(layer_stack(rest)); !stack.empty()) {
    rest.erase(0, stack.size());
    const std::string layer = take_number(rest);
    trunk = stack + (layer.empty() ? "{}" : layer) + ".";
  }
  if (trunk.empty()) {
    name.is_second = rename_beginning(rest, kSecondNames);
    name.text = before + rest;
    return name;
  }
  (void)rename_beginning(rest, kNorms);
  if (rest.starts_with(kExperts)) {
    rest.erase(0, kExperts.size());
    const std::string expert = take_number(rest);
    rest = std::string(kLocalExperts) + (expert.empty() ? "{}" : expert) + "." + rest;
  }
  for (const auto& [ending, half] : {std::pair(".weight_w", 0), std::pair(".weight_v", 1)}) {
    if (rest.ends_with(ending)) {
      rest.erase(rest.size() - 2);
      name.half = half;
    }
  }
  name.text = before + trunk + rest;
  return name;
}

std::string modern_megatron_name(std::string_view name) {
  std::string rest(name);
  if (rest.starts_with(kOldModel)) {
    rest.erase(0, kOldModel.size());
    (void)rename_beginning(rest, kOldTrunks);
  }
  const std::string stack(layer_stack(rest));
  if (stack.empty()) {
    return rest;
  }
  rest.erase(0, stack.size());
  const std::string layer = take_number(rest);
  (void)rename_beginning(rest, kOldParts);
  return stack + layer + (layer.empty() ? "" : ".") + rest;
}

std::map<std::string, MegatronPlace> torch_dist_places(const std::vector<std::string>& names) {
  struct Layer {
    std::set<std::string> bodies;
    int64_t experts = 0;
    bool operator==(const Layer&) const = default;
  };

  std::map<std::string, Layer> layers; // by what their names begin with
  for (const std::string& name : names) {
    const LayerName one = parsed(name);
    if (!one.trunk.empty()) {
      Layer& layer = layers[one.before()];
      layer.bodies.insert(one.body);
      layer.experts =
          std::max<int64_t>(layer.experts, one.expert.empty() ? 0 : std::stoll(one.expert) + 1);
    }
  }

  struct Stack {
    int64_t layers = 0;
    const Layer* first = nullptr;
    bool alike = true;
  };

  // Layers of a hybrid have their numbers even if they are alike.
  const bool is_hybrid = std::ranges::any_of(names, [](const std::string& name) {
    return name.starts_with("decoder.final_norm.");
  });
  std::map<std::string_view, Stack> stacks;
  for (const auto& [before, layer] : layers) {
    Stack& stack = stacks[layer_stack(before)];
    ++stack.layers;
    stack.first = stack.first == nullptr ? &layer : stack.first;
    stack.alike = stack.alike && !is_hybrid && layer == *stack.first;
  }
  const bool is_t5 = std::ranges::any_of(names, [](const std::string& name) {
    return name.find(".cross_attention.") != std::string::npos;
  });
  std::map<std::string, MegatronPlace> places;
  for (const std::string& name : names) {
    const LayerName one = parsed(name);
    if (one.trunk.empty()) {
      places[name] = {name, {}, {}, is_t5 ? second_name(name) : ""};
      continue;
    }
    const Layer& layer = layers.at(one.before());
    std::string body = one.body;
    for (const auto& [fused, own] : kNorms) {
      // The norm of a mixture stands by itself.
      const std::string linear = std::string(fused.substr(0, fused.find("layer_norm_"))) + "weight";
      const auto at = layer.bodies.lower_bound(linear);
      if (body.starts_with(own) && at != layer.bodies.end() && at->starts_with(linear)) {
        body.replace(0, own.size(), fused);
        break;
      }
    }
    const Stack& stack = stacks.at(layer_stack(one.trunk));
    const bool stacked = stack.alike && !one.layer.empty();
    MegatronPlace place{(stacked ? one.trunk : one.before()) + body, {}, {}, {}};
    if (stacked) {
      place.at.push_back(std::stoll(one.layer));
      place.all.push_back(stack.layers);
    }
    if (!one.expert.empty()) {
      place.at.push_back(std::stoll(one.expert));
      place.all.push_back(layer.experts);
    }
    places[name] = std::move(place);
  }
  return places;
}

std::optional<size_t> megatron_split_dim(std::string_view name) {
  constexpr std::pair<std::string_view, size_t> kSplitTensors[] = {
      {"word_embeddings.weight", 0},
      {"output_layer.weight", 0},
      {"output_layer.bias", 0},
      {"eh_proj.weight", 0},
      {"linear_qkv.weight", 0},
      {"linear_qkv.bias", 0},
      {"linear_q.weight", 0},
      {"linear_q.bias", 0},
      {"linear_kv.weight", 0},
      {"linear_kv.bias", 0},
      {"linear_q_proj.weight", 0},
      {"linear_q_up_proj.weight", 0},
      {"linear_kv_up_proj.weight", 0},
      {"linear_fc1.weight", 0},
      {"linear_fc1.bias", 0},
      {"linear_proj.weight", 1},
      {"linear_fc2.weight", 1},
      {"mixer.dt_bias", 0},
      {"mixer.A_log", 0},
      {"mixer.D", 0},
      {"mixer.norm.weight", 0},
      {"mixer.out_proj.weight", 1}};
  for (const auto& [ending, dim] : kSplitTensors) {
    if (name.ends_with(ending)) {
      return dim;
    }
  }
  // Parts of what mixers join: "mixer.in_proj.weight.z".
  const bool is_part = name.find("mixer.in_proj.weight.") != std::string_view::npos ||
                       name.find("mixer.conv1d.") != std::string_view::npos;
  return is_part ? std::optional<size_t>(0) : std::nullopt;
}

std::string megatron_arguments(const PickleValue& root) {
  nlohmann::json all = nlohmann::json::object();
  const auto add = [&all](std::string_view key, const PickleValue& value) {
    if (key == kUnreadState) {
      return; // ours
    }
    if (value.is(PickleKind::boolean)) {
      all[std::string(key)] = value.integer != 0;
    } else if (value.is(PickleKind::integer)) {
      all[std::string(key)] = value.integer;
    } else if (value.is(PickleKind::real) && std::isfinite(value.real)) {
      all[std::string(key)] = value.real;
    } else if (value.is(PickleKind::text)) {
      all[std::string(key)] = std::string(value.text);
    }
  };
  const PickleValue* args = root.get("args");
  const PickleValue* members = args != nullptr && args->is(PickleKind::object) ? args->state : args;
  if (members != nullptr && members->is(PickleKind::dict)) {
    for (size_t i = 0; i + 1 < members->items.size(); i += 2) {
      if (members->items[i]->is(PickleKind::text)) {
        add(members->items[i]->text, *members->items[i + 1]);
      }
    }
  }
  for (const char* key : {"iteration", "checkpoint_version"}) {
    if (const PickleValue* value = root.get(key)) {
      add(key, *value);
    }
  }
  return all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

} // namespace mh
