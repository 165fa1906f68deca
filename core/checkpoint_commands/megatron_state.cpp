#include "core/checkpoint_commands/megatron_state.hpp"

#include "core/checkpoint/hf_export.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace mh {

namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::array kMoments{"exp_avg", "exp_avg_sq"};

/// The mapping of a state's tensors; "" is the weights' own.
HfTensor of_state(HfTensor map, const std::string& state) {
  map.theirs = "optimizer." + state + "." + map.theirs;
  if (state != "master") {
    for (std::string& ours : map.ours) {
      ours = "optimizer." + state + "." + ours;
    }
  }
  return map;
}

/// Whether the checkpoint has both moments of each tensor that a tensor of theirs is made of.
bool has_state(const CheckpointReader& saved, const HfTensor& map) {
  return std::ranges::all_of(map.ours, [&](const std::string& ours) {
    return std::ranges::all_of(kMoments, [&](const char* state) {
      const CheckpointTensor* weight = saved.find(ours);
      const CheckpointTensor* moment = saved.find(std::string("optimizer.") + state + "." + ours);
      return weight != nullptr && moment != nullptr && moment->shape == weight->shape;
    });
  });
}

double number(const Value& recipe, const std::string& key, double otherwise = 0) {
  const Value* value = recipe.find_path(key);
  return value != nullptr && value->is_number() ? value->as_number() : otherwise;
}

int64_t whole_number(const Value& recipe, const std::string& key, int64_t otherwise = 0) {
  const Value* value = recipe.find_path(key);
  return value != nullptr && value->is_integer() ? value->as_integer() : otherwise;
}

/// A length that the recipe gives in samples, in steps or as a share of another.
int64_t samples_of(const Value& recipe, const std::string& key, int64_t otherwise) {
  const int64_t batch = whole_number(recipe, "batch.global", 1);
  const int64_t steps = whole_number(recipe, "lr_schedule." + key + "_iters", -1);
  return whole_number(
      recipe, "lr_schedule." + key + "_samples", steps >= 0 ? steps * batch : otherwise
  );
}

OrderedJson param_scheduler(const Value& recipe, int64_t samples) {
  constexpr std::pair<std::string_view, const char*> kStyles[] = {
      {"linear", "linear"},
      {"cosine", "cosine"},
      {"inverse_sqrt", "inverse-square-root"},
      {"wsd", "WSD"}};
  const Value* use = recipe.find_path("lr_schedule.use");
  const auto* style = std::ranges::find_if(kStyles, [use](const auto& pair) {
    return use != nullptr && use->is_string() && use->as_string() == pair.first;
  });
  const int64_t length =
      whole_number(recipe, "train.iters", 1) * whole_number(recipe, "batch.global", 1);
  const int64_t decay = samples_of(recipe, "decay", length);
  const double share = number(recipe, "lr_schedule.warmup_share");
  const double weight_decay = number(recipe, "optimizer.weight_decay");
  return {
      {"max_lr", number(recipe, "optimizer.lr")},
      {"min_lr", number(recipe, "lr_schedule.min_lr")},
      {"lr_warmup_steps",
       samples_of(recipe, "warmup", static_cast<int64_t>(share * static_cast<double>(decay)))},
      {"lr_decay_steps", decay},
      {"lr_decay_style", style == std::end(kStyles) ? "constant" : style->second},
      {"num_steps", samples},
      {"start_wd", weight_decay},
      {"end_wd", weight_decay},
      {"wd_incr_style", "constant"},
      {"wd_incr_steps", length}};
}

/// The groups of parameters with and without weight decay.
OrderedJson param_groups(const Value& recipe, int64_t updates, bool experts) {
  OrderedJson betas{0.9, 0.95};
  if (const Value* given = recipe.find_path("optimizer.betas");
      given != nullptr && given->is_array() && given->as_array().size() == 2) {
    betas = {given->as_array()[0].as_number(), given->as_array()[1].as_number()};
  }
  OrderedJson groups = OrderedJson::array();
  for (const double factor : {1.0, 0.0}) {
    groups.push_back(
        {{"lr", number(recipe, "optimizer.lr")},
         {"betas", betas},
         {"eps", number(recipe, "optimizer.eps", 1e-8)},
         {"weight_decay", factor * number(recipe, "optimizer.weight_decay")},
         {"bias_correction", true},
         {"step", updates},
         {"max_lr", number(recipe, "optimizer.lr")},
         {"min_lr", number(recipe, "lr_schedule.min_lr")},
         {"wd_mult", factor},
         {"lr_mult", 1.0},
         {"is_decoupled_lr", false},
         {"is_expert_parallel", experts},
         {"default_config", true}}
    );
  }
  return groups;
}

/// The entries that each of Megatron's optimizers looks for: the distributed one and that of 16-bit weights below
/// "optimizer", that of float32 weights next to it.
OrderedJson optimizer_state(const Value& recipe, int64_t updates, bool experts) {
  const OrderedJson inner{
      {"state", {{"common_step", updates}}},
      {"param_groups", param_groups(recipe, updates, experts)}};
  OrderedJson both = inner;
  both["optimizer"] = inner;
  both["param_state_sharding_type"] = "fully_reshardable";
  return both;
}

} // namespace

OutlinedTensors megatron_tensors(
    CheckpointReader& saved, const std::vector<HfTensor>& maps, std::optional<at::ScalarType> dtype
) {
  const auto mapped = [&](const std::vector<HfTensor>& some, std::optional<at::ScalarType> type) {
    return std::make_shared<OutlinedTensors>(
        mapped_tensors(saved, some, TensorNames::megatron, type)
    );
  };
  std::vector<std::shared_ptr<OutlinedTensors>> parts{mapped(maps, dtype)};
  std::vector<HfTensor> moments, masters;
  for (size_t i = 0; i < maps.size(); ++i) {
    if (has_state(saved, maps[i])) {
      for (const char* state : kMoments) {
        moments.push_back(of_state(maps[i], state));
      }
      if (parts[0]->outlines[i].dtype != at::kFloat) {
        masters.push_back(of_state(maps[i], "master"));
      }
    }
  }
  parts.push_back(mapped(moments, at::kFloat));
  parts.push_back(mapped(masters, at::kFloat));
  OutlinedTensors all;
  std::map<std::string, std::shared_ptr<OutlinedTensors>> part_of;
  for (const auto& part : parts) {
    all.at_once = std::max(all.at_once, part->at_once);
    for (const TensorOutline& outline : part->outlines) {
      all.outlines.push_back(outline);
      part_of[outline.name] = part;
    }
  }
  all.value = [part_of](const std::string& name) { return part_of.at(name)->value(name); };
  return all;
}

bool has_moments(const OutlinedTensors& tensors) {
  return std::ranges::any_of(tensors.outlines, [](const TensorOutline& outline) {
    return outline.name.starts_with("optimizer.");
  });
}

OrderedJson megatron_common(const Value& recipe, const nlohmann::json& state) {
  const auto count = [&state](const char* key) {
    const auto found = state.find(key);
    return found != state.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
  };
  const int64_t samples = count("samples");
  const auto guards = state.value("guards", nlohmann::json::object());
  const int64_t updates = count("step") - guards.value("skipped", int64_t{0});
  OrderedJson optimizer = optimizer_state(recipe, updates, false);
  if (whole_number(recipe, "parallel.expert", 1) > 1) {
    optimizer = {{"0", optimizer}, {"1", optimizer_state(recipe, updates, true)}};
  }
  return {
      {"args",
       {{"num_layers", whole_number(recipe, "model.layers")},
        {"hidden_size", whole_number(recipe, "model.hidden")},
        {"num_attention_heads", whole_number(recipe, "model.heads")},
        {"max_position_embeddings", whole_number(recipe, "model.seq_length")},
        {"tensor_model_parallel_size", 1},
        {"pipeline_model_parallel_size", 1},
        {"consumed_train_samples", samples},
        {"consumed_valid_samples", 0},
        {"skipped_train_samples", 0},
        {"no_save_rng", true}}},
      {"content_metadata",
       {{"distrib_optim_sharding_type", "fully_reshardable"},
        {"distrib_optim_fully_reshardable_mem_efficient", false},
        {"singleton_local_shards", false},
        {"chained_optim_avoid_prefix", true}}},
      {"optimizer", optimizer},
      {"opt_param_scheduler", param_scheduler(recipe, samples)}};
}

} // namespace mh
