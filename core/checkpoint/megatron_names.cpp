#include "core/checkpoint/megatron_names.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <utility>

namespace mh {

namespace {

constexpr std::string_view kLayers = "decoder.layers.";
constexpr std::string_view kExperts = "mlp.experts.experts.";
constexpr std::string_view kLocalExperts = "mlp.experts.local_experts.";
constexpr std::string_view kMoments = "optimizer.state.";

using Renaming = std::pair<std::string_view, std::string_view>;

/// Transformer Engine has a norm in the linear layer after it.
constexpr Renaming kNorms[] = {
    {"self_attention.linear_qkv.layer_norm_", "input_layernorm."},
    {"mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm."}};

constexpr Renaming kOldTrunks[] = {
    {"language_model.", ""}, {"encoder.", "decoder."}, {"transformer.", "decoder."}};

constexpr Renaming kOldParts[] = {
    {"attention.query_key_value.", "self_attention.linear_qkv."},
    {"self_attention.query_key_value.", "self_attention.linear_qkv."},
    {"attention.dense.", "self_attention.linear_proj."},
    {"self_attention.dense.", "self_attention.linear_proj."},
    {"mlp.dense_h_to_4h.", "mlp.linear_fc1."},
    {"mlp.dense_4h_to_h.", "mlp.linear_fc2."},
    {"post_attention_layernorm.", "pre_mlp_layernorm."}};

/// Replaces what a text begins with, if it is one of these.
template <size_t N>
void rename_beginning(std::string& ret_text, const Renaming (&renamings)[N]) {
  for (const auto& [old, now] : renamings) {
    if (ret_text.starts_with(old)) {
      ret_text.replace(0, old.size(), now);
      return;
    }
  }
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

/// "decoder.layers.3.mlp.x" is layer 3 and "mlp.x"; the number of what is no layer's is empty.
struct LayerName {
  std::string layer, expert, body;
};

LayerName parsed(const std::string& name) {
  LayerName found{.layer = "", .expert = "", .body = name};
  if (!name.starts_with(kLayers)) {
    return found;
  }
  found.body = name.substr(kLayers.size());
  found.layer = take_number(found.body);
  if (found.body.starts_with(kLocalExperts)) {
    std::string rest = found.body.substr(kLocalExperts.size());
    found.expert = take_number(rest);
    found.body = std::string(kExperts) + rest;
  }
  return found;
}

} // namespace

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
  while (rest.starts_with("module.")) { // of wrappers, which NeMo saves, too
    rest.erase(0, std::string_view("module.").size());
  }
  MegatronName name;
  if (!rest.starts_with(kLayers) || rest.find("{}") != std::string::npos) {
    name.text = before + rest;
    return name;
  }
  rest.erase(0, kLayers.size());
  const std::string layer = take_number(rest);
  rename_beginning(rest, kNorms);
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
  name.text = before + std::string(kLayers) + (layer.empty() ? "{}" : layer) + "." + rest;
  return name;
}

std::string modern_megatron_name(std::string_view name) {
  std::string rest(name);
  rename_beginning(rest, kOldTrunks);
  rename_beginning(rest, kOldTrunks); // what was within the first one
  if (!rest.starts_with(kLayers)) {
    return rest;
  }
  rest.erase(0, kLayers.size());
  const std::string layer = take_number(rest);
  rename_beginning(rest, kOldParts);
  return std::string(kLayers) + layer + (layer.empty() ? "" : ".") + rest;
}

std::map<std::string, MegatronPlace> torch_dist_places(const std::vector<std::string>& names) {
  std::map<std::string, std::set<std::string>> bodies; // of each layer
  std::map<std::string, int64_t> experts;              // of each layer
  for (const std::string& name : names) {
    const LayerName one = parsed(name);
    if (!one.layer.empty()) {
      bodies[one.layer].insert(one.body);
      int64_t& count = experts[one.layer];
      count = std::max<int64_t>(count, one.expert.empty() ? 0 : std::stoll(one.expert) + 1);
    }
  }
  const bool alike = std::all_of(bodies.begin(), bodies.end(), [&](const auto& layer) {
    return layer.second == bodies.begin()->second &&
           experts[layer.first] == experts.begin()->second;
  });
  std::map<std::string, MegatronPlace> places;
  for (const std::string& name : names) {
    const LayerName one = parsed(name);
    if (one.layer.empty()) {
      places[name] = {name, {}, {}};
      continue;
    }
    std::string body = one.body;
    for (const auto& [fused, own] : kNorms) {
      // The norm of a mixture stands by itself.
      if (body.starts_with(own) &&
          bodies[one.layer].contains(
              std::string(fused.substr(0, fused.find("layer_norm_"))) + "weight"
          )) {
        body.replace(0, own.size(), fused);
      }
    }
    MegatronPlace place{std::string(kLayers) + (alike ? "" : one.layer + ".") + body, {}, {}};
    if (alike) {
      place.at.push_back(std::stoll(one.layer));
      place.all.push_back(std::ssize(bodies));
    }
    if (!one.expert.empty()) {
      place.at.push_back(std::stoll(one.expert));
      place.all.push_back(experts[one.layer]);
    }
    places[name] = std::move(place);
  }
  return places;
}

std::string megatron_arguments(const PickleValue& root) {
  nlohmann::json all = nlohmann::json::object();
  const auto add = [&all](std::string_view key, const PickleValue& value) {
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
