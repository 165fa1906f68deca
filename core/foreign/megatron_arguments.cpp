#include "core/foreign/megatron_arguments.hpp"

#include <nlohmann/json.hpp>

#include <cmath>
#include <optional>
#include <string_view>

namespace mh {

namespace {

struct ArgumentField {
  const char* argument;
  const char* field;
};

constexpr ArgumentField kNumberArguments[] = {
    {"num_layers", "layers"},
    {"encoder_num_layers", "encoder_layers"},
    {"hidden_size", "hidden"},
    {"num_attention_heads", "heads"},
    {"num_query_groups", "kv_heads"},
    {"kv_channels", "head_dim"},
    {"norm_epsilon", "norm_eps"},
    {"layernorm_epsilon", "norm_eps"},
    {"rotary_base", "rope_base"},
    {"rotary_percent", "rope_share"},
    {"num_experts", "experts"},
    {"moe_router_topk", "experts_per_token"},
    {"mamba_num_groups", "mamba_groups"},
    {"mamba_state_dim", "mamba_state"},
    {"mamba_head_dim", "mamba_head_dim"}};

std::optional<double> number_of(const Table& model, std::string_view field) {
  const Value* value = model.find(field);
  if (value != nullptr && !value->is_null()) {
    return value->as_number();
  }
  const auto heads =
      field == "kv_heads" || field == "head_dim" ? number_of(model, "heads") : std::nullopt;
  if (field == "kv_heads") {
    return heads;
  }
  const auto hidden = heads ? number_of(model, "hidden") : std::nullopt;
  return hidden ? std::optional(std::floor(*hidden / *heads)) : std::nullopt;
}

/// Whether an argument means something for this model.
bool counts(const nlohmann::json& arguments, const Table& model, std::string_view argument) {
  if (argument == "num_query_groups") {
    return arguments.value("group_query_attention", true);
  }
  if (argument == "num_layers") {
    return model.find("encoder_layers") == nullptr; // T5 gives the encoder's
  }
  if (argument.starts_with("mamba_")) {
    const Value* pattern = model.find("pattern");
    return pattern != nullptr && pattern->as_string().find('M') != std::string::npos;
  }
  if (argument.starts_with("rotary_")) {
    const Value* positions = model.find("positions");
    return positions != nullptr && *positions == Value("rope");
  }
  return true;
}

} // namespace

std::vector<std::string> argument_differences(const nlohmann::json& arguments, const Table& model) {
  std::vector<std::string> differences;
  const auto differ = [&](const char* field, const Value& ours, const char* argument) {
    differences.push_back(
        std::string(field) + " is " + to_text(ours) + " in the recipe, and " + argument + " " +
        arguments.at(argument).dump() + " in the checkpoint"
    );
  };
  for (const auto& [argument, field] : kNumberArguments) {
    const auto found = arguments.find(argument);
    const auto ours = number_of(model, field);
    if (found != arguments.end() && found->is_number() && ours &&
        counts(arguments, model, argument) &&
        std::abs(found->get<double>() - *ours) > 1e-9 * std::abs(*ours)) {
      const Value* given = model.find(field);
      const bool is_given = given != nullptr && !given->is_null();
      differ(field, is_given ? *given : Value(static_cast<int64_t>(*ours)), argument);
    }
  }
  const Value* norm = model.find("norm");
  if (const auto found = arguments.find("normalization");
      found != arguments.end() && found->is_string() && norm != nullptr &&
      (*found == "RMSNorm") != (*norm == Value("rmsnorm"))) {
    differ("norm", *norm, "normalization");
  }
  const Value* activation = model.find("activation");
  if (const auto found = arguments.find("swiglu");
      found != arguments.end() && found->is_boolean() && activation != nullptr &&
      found->get<bool>() != (*activation == Value("swiglu"))) {
    differ("activation", *activation, "swiglu");
  }
  return differences;
}

} // namespace mh
