#include "megahost/nn/mixture_config.hpp"

#include "core/decoder/field_conditions.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

namespace mh {

namespace {

bool balances(const MixtureConfig& c, std::string_view word) {
  return std::find(c.balance.begin(), c.balance.end(), word) != c.balance.end();
}

std::string numeral(int64_t number) {
  return std::to_string(number);
}

std::string experts_per_token(const MixtureConfig& c) {
  if (c.experts > 0 && c.experts_per_token > c.experts) {
    return "experts_per_token " + numeral(c.experts_per_token) + " is greater than experts " +
           numeral(c.experts);
  }
  const bool always_one = c.router == "topk_softmax" ||
                          (c.router == "softmax_topk" && c.router_normalise.value_or(false));
  return c.experts_per_token == 1 && c.experts > 1 && always_one
             ? "the weight of a single expert is always 1 with router = \"" + c.router +
                   "\", so the router would learn nothing; use softmax_topk without "
                   "router_normalise, or sigmoid"
             : "";
}

std::string router_groups(const MixtureConfig& c) {
  return c.experts % c.router_groups != 0
             ? "experts " + numeral(c.experts) + " are not divisible by router_groups " +
                   numeral(c.router_groups)
             : "";
}

std::string router_groups_chosen(const MixtureConfig& c) {
  if (c.router_groups_chosen > c.router_groups) {
    return "router_groups_chosen " + numeral(c.router_groups_chosen) +
           " is greater than router_groups " + numeral(c.router_groups);
  }
  const int64_t within = c.experts / c.router_groups * c.router_groups_chosen;
  if (c.router_groups > 1 && c.experts_per_token > within) {
    return "experts_per_token " + numeral(c.experts_per_token) + " is greater than the " +
           numeral(within) + " experts of router_groups_chosen " + numeral(c.router_groups_chosen);
  }
  return "";
}

std::string router_normalise(const MixtureConfig& c) {
  return c.router_normalise && c.router == "topk_softmax"
             ? "the weights of router = \"topk_softmax\" have the sum 1 already"
             : "";
}

std::string balance(const MixtureConfig& c) {
  return c.balance.size() > 1 && balances(c, "none") ? "\"none\" stands alone" : "";
}

std::string capacity_factor(const MixtureConfig& c) {
  return c.capacity_factor && !c.capacity_drop
             ? "an expert of limited capacity drops tokens, but which? set capacity_drop to "
               "probability or position"
             : "";
}

std::string capacity_drop(const MixtureConfig& c) {
  return c.capacity_drop && !c.capacity_factor
             ? "nothing is dropped without capacity_factor; set it to 1 or more"
             : "";
}

std::string capacity_pad(const MixtureConfig& c) {
  return c.capacity_pad && !c.capacity_factor
             ? "there is no capacity to pad to; set capacity_factor and capacity_drop"
             : "";
}

std::string shared_gate(const MixtureConfig& c) {
  return c.shared_gate && !c.shared_hidden ? "there is no shared expert; set shared_hidden" : "";
}

constexpr FieldCondition<MixtureConfig> kMixtureConditions[] = {
    {"experts_per_token", experts_per_token},
    {"router_groups", router_groups},
    {"router_groups_chosen", router_groups_chosen},
    {"router_normalise", router_normalise},
    {"balance", balance},
    {"capacity_factor", capacity_factor},
    {"capacity_drop", capacity_drop},
    {"capacity_pad", capacity_pad},
    {"shared_gate", shared_gate},
};

} // namespace

bool MixtureConfig::has_bias() const {
  return balances(*this, "bias");
}

bool MixtureConfig::rates_groups_by_two() const {
  return router_groups <= 1 || experts_per_token / router_groups_chosen == 2;
}

MixtureSpec MixtureConfig::mixture(const FeedForwardSpec& dense, int64_t layers) const {
  MixtureSpec spec{
      .router =
          {.embed = dense.embed,
           .experts = experts,
           .chosen = experts_per_token,
           .score = router == "sigmoid"        ? RouterScore::sigmoid
                    : router == "softmax_topk" ? RouterScore::softmax_topk
                                               : RouterScore::topk_softmax,
           .normalise = router_normalise.value_or(router == "sigmoid"),
           .scale = router_scale,
           .groups = router_groups,
           .groups_chosen = router_groups_chosen,
           .auxiliary = balances(*this, "auxiliary"),
           .sequence = balances(*this, "sequence"),
           .global = balances(*this, "global"),
           .balance_weight = balance_weight,
           .z_weight = z_weight,
           .capacity = capacity_factor,
           .drop_by_position = capacity_drop.value_or("") == "position",
           .logit_bias = dense.bias,
           .std = dense.std},
      .hidden = expert_hidden.value_or(dense.hidden),
      .activation = dense.activation,
      .bias = dense.bias,
      .pad = capacity_pad,
      .std = dense.std,
      .out_std = dense.out_std,
      .latent = expert_latent,
      .shared = shared_hidden,
      .shared_gate = shared_gate};
  if (has_bias()) {
    spec.router.bias_rate = balance_bias_rate;
  }
  spec.router.layers = layers;
  return spec;
}

namespace mixture_detail {

std::vector<std::string> checked_fields() {
  return fields_of(kMixtureConditions);
}

std::string contradiction(const std::string& field, const MixtureConfig& c) {
  return contradiction_at(kMixtureConditions, field, c);
}

} // namespace mixture_detail

void add_expert_names(
    const MixtureConfig& config,
    bool gated,
    const std::string& theirs,
    const std::string& ours,
    std::vector<HfTensor>& map,
    const ExpertNames& names
) {
  map.push_back({theirs + "gate.weight", {ours + "router.weight"}});
  if (config.router == "sigmoid" && config.has_bias()) {
    map.push_back({theirs + "gate.e_score_correction_bias", {ours + "router.bias"}});
  }
  const std::string up = ours + (gated ? "experts.gate_up.weight" : "experts.up.weight");
  const std::string down = ours + "experts.down.weight";
  for (int64_t e = 0; e < config.experts; ++e) {
    const auto add = [&](const char* name, const std::string& piece, std::vector<int64_t> at) {
      const std::string whole = theirs + "experts." + numeral(e) + "." + name + ".weight";
      map.push_back({.theirs = whole, .ours = {piece}, .at = std::move(at)});
    };
    if (gated) {
      add(names.gate, up, {e, 0});
      add(names.up, up, {e, 1});
    } else {
      add(names.up, up, {e});
    }
    add(names.down, down, {e});
  }
}

void scale_mixture(
    const MixtureConfig& whole, int64_t hidden, const ModelScale& to, Table& ret_own
) {
  const auto width = [&](int64_t of_whole) {
    return to.uneven ? to.hidden * 2 / 5 : to.narrowed(of_whole, hidden);
  };
  if (to.uneven || whole.expert_hidden) {
    ret_own.set("expert_hidden", width(whole.expert_hidden.value_or(0)));
  }
  if (whole.expert_latent) {
    ret_own.set("expert_latent", width(*whole.expert_latent));
  }
  if (whole.shared_hidden) {
    ret_own.set("shared_hidden", width(*whole.shared_hidden));
  }
}

std::vector<std::string> mixture_free() {
  return {"balance", "balance_weight", "balance_bias_rate", "z_weight"};
}

void mixture_plain(Table& fields) {
  const auto is_absent = [&fields](const char* name) {
    const Value* value = fields.find(name);
    return value == nullptr || value->is_null();
  };
  if (is_absent("expert_hidden")) {
    fields.set("expert_hidden", *fields.find("ffn_hidden"));
  }
  const Value router = *fields.find("router");
  if (router == Value("topk_softmax")) {
    fields.erase("router_normalise");
  } else if (is_absent("router_normalise")) {
    fields.set("router_normalise", router == Value("sigmoid"));
  }
  if (is_absent("router_groups") || *fields.find("router_groups") == Value(1)) {
    fields.erase("router_groups_chosen");
  }
}

} // namespace mh
