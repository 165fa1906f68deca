#include "config.hpp"

#include <algorithm>
#include <string_view>

namespace {

std::string text(int64_t number) {
  return std::to_string(number);
}

bool has(const MoeConfig& c, std::string_view word) {
  return std::find(c.balance.begin(), c.balance.end(), word) != c.balance.end();
}

std::string experts_per_token(const MoeConfig& c) {
  if (c.experts_per_token > c.experts) {
    return "experts_per_token " + text(c.experts_per_token) + " is greater than experts " +
           text(c.experts);
  }
  const bool always_one = c.router == "topk_softmax" ||
                          (c.router == "softmax_topk" && c.router_normalise.value_or(false));
  return c.experts_per_token == 1 && c.experts > 1 && always_one
             ? "the weight of a single expert is always 1 with router = \"" + c.router +
                   "\", so the router would learn nothing; use softmax_topk without "
                   "router_normalise, or sigmoid"
             : "";
}

std::string router_groups(const MoeConfig& c) {
  return c.experts % c.router_groups != 0
             ? "experts " + text(c.experts) + " are not divisible by router_groups " +
                   text(c.router_groups)
             : "";
}

std::string router_groups_chosen(const MoeConfig& c) {
  if (c.router_groups_chosen > c.router_groups) {
    return "router_groups_chosen " + text(c.router_groups_chosen) +
           " is greater than router_groups " + text(c.router_groups);
  }
  const int64_t within = c.experts / c.router_groups * c.router_groups_chosen;
  if (c.router_groups > 1 && c.experts_per_token > within) {
    return "experts_per_token " + text(c.experts_per_token) + " is greater than the " +
           text(within) + " experts of router_groups_chosen " + text(c.router_groups_chosen);
  }
  return "";
}

std::string router_normalise(const MoeConfig& c) {
  return c.router_normalise && c.router == "topk_softmax"
             ? "the weights of router = \"topk_softmax\" have the sum 1 already"
             : "";
}

std::string balance(const MoeConfig& c) {
  return c.balance.size() > 1 && has(c, "none") ? "\"none\" stands alone" : "";
}

std::string capacity_factor(const MoeConfig& c) {
  return c.capacity_factor && !c.capacity_drop
             ? "an expert of limited capacity drops tokens, but which? set capacity_drop to "
               "probability or position"
             : "";
}

std::string capacity_drop(const MoeConfig& c) {
  return c.capacity_drop && !c.capacity_factor
             ? "nothing is dropped without capacity_factor; set it to 1 or more"
             : "";
}

std::string capacity_pad(const MoeConfig& c) {
  return c.capacity_pad && !c.capacity_factor
             ? "there is no capacity to pad to; set capacity_factor and capacity_drop"
             : "";
}

std::string shared_gate(const MoeConfig& c) {
  return c.shared_gate && !c.shared_hidden ? "there is no shared expert; set shared_hidden" : "";
}

std::string moe_pattern(const MoeConfig& c) {
  return !c.moe_pattern.empty() && c.moe_every != 1
             ? "moe_every and moe_pattern both say which layers have experts; give one of them"
             : "";
}

std::string first_dense(const MoeConfig& c) {
  return c.first_dense > c.layers
             ? "first_dense " + text(c.first_dense) + " is greater than layers " + text(c.layers)
             : "";
}

struct Condition {
  const char* field;
  std::string (*check)(const MoeConfig& c);
};

constexpr Condition kConditions[] = {
    {"experts_per_token", experts_per_token},
    {"router_groups", router_groups},
    {"router_groups_chosen", router_groups_chosen},
    {"router_normalise", router_normalise},
    {"balance", balance},
    {"capacity_factor", capacity_factor},
    {"capacity_drop", capacity_drop},
    {"capacity_pad", capacity_pad},
    {"shared_gate", shared_gate},
    {"first_dense", first_dense},
    {"moe_pattern", moe_pattern},
};

void router_fields(mh::Fields<MoeConfig>& f) {
  using C = MoeConfig;
  f.add(
       "router",
       &C::router,
       "weights of a token's experts: softmax over the chosen, share of the softmax over all, or "
       "each expert by itself"
  )
      .one_of({"topk_softmax", "softmax_topk", "sigmoid"});
  f.add(
      "router_normalise",
      &C::router_normalise,
      "divide a token's weights by their sum; if absent only those of sigmoid"
  );
  f.add("router_scale", &C::router_scale, "factor of the weights").above(0);
  f.add(
       "router_groups", &C::router_groups, "groups of experts, of which a token chooses some first"
  )
      .at_least(1);
  f.add("router_groups_chosen", &C::router_groups_chosen, "groups that a token chooses")
      .at_least(1);
  f.add(
       "balance",
       &C::balance,
       "what keeps experts evenly busy: a loss on each microbatch (auxiliary), on each sample, on "
       "what all data ranks have at once (global), a bias in the choice alone, or none"
  )
      .one_of({"auxiliary", "sequence", "global", "bias", "none"});
  f.add("balance_weight", &C::balance_weight, "factor of the losses that balance").at_least(0);
  f.add("balance_bias_rate", &C::balance_bias_rate, "what the bias moves by after each step")
      .above(0);
  f.add("z_weight", &C::z_weight, "factor of the loss on large router logits").at_least(0);
}

} // namespace

bool MoeConfig::is_moe(int64_t index) const {
  if (index < first_dense) {
    return false;
  }
  return moe_pattern.empty()
             ? index % moe_every == 0
             : moe_pattern[static_cast<size_t>(index) % moe_pattern.size()] == "moe";
}

bool MoeConfig::has_bias() const {
  return has(*this, "bias");
}

mh::MixtureSpec MoeConfig::mixture(const mh::FeedForwardSpec& dense) const {
  mh::MixtureSpec spec{
      .router =
          {.embed = dense.embed,
           .experts = experts,
           .chosen = experts_per_token,
           .score = router == "sigmoid"        ? mh::RouterScore::sigmoid
                    : router == "softmax_topk" ? mh::RouterScore::softmax_topk
                                               : mh::RouterScore::topk_softmax,
           .normalise = router_normalise.value_or(router == "sigmoid"),
           .scale = router_scale,
           .groups = router_groups,
           .groups_chosen = router_groups_chosen,
           .auxiliary = has(*this, "auxiliary"),
           .sequence = has(*this, "sequence"),
           .global = has(*this, "global"),
           .balance_weight = balance_weight,
           .z_weight = z_weight,
           .capacity = capacity_factor,
           .drop_by_position = capacity_drop.value_or("") == "position",
           .logit_bias = bias,
           .std = init_std},
      .hidden = expert_hidden.value_or(dense.hidden),
      .activation = dense.activation,
      .bias = bias,
      .pad = capacity_pad,
      .std = dense.std,
      .out_std = dense.out_std,
      .shared = shared_hidden,
      .shared_gate = shared_gate};
  if (has_bias()) {
    spec.router.bias_rate = balance_bias_rate;
  }
  spec.router.layers = 0;
  for (int64_t i = 0; i < layers; ++i) {
    spec.router.layers += is_moe(i) ? 1 : 0;
  }
  spec.router.layers += is_moe(layers - 1) ? mtp_layers : 0; // their layers are as the last one
  return spec;
}

void moe_fields(mh::Fields<MoeConfig>& f) {
  using C = MoeConfig;
  mh::decoder_fields(f);
  f.add("experts", &C::experts, "feed-forwards of a layer that a token can choose").at_least(1);
  f.add("experts_per_token", &C::experts_per_token, "experts that each token passes").at_least(1);
  f.add("expert_hidden", &C::expert_hidden, "hidden units of an expert; ffn_hidden if absent")
      .at_least(1);
  f.add("first_dense", &C::first_dense, "so many layers at the start have no experts").at_least(0);
  f.add("moe_every", &C::moe_every, "layers 0, n, 2n, ... have experts, the others are dense")
      .at_least(1);
  f.add(
       "moe_pattern",
       &C::moe_pattern,
       "which layers have experts, repeated over the layers; as moe_every says if empty"
  )
      .one_of({"moe", "dense"});
  f.add(
       "shared_hidden",
       &C::shared_hidden,
       "hidden units of a feed-forward that every token passes in addition to its experts; none if "
       "absent"
  )
      .at_least(1);
  f.add("shared_gate", &C::shared_gate, "weigh the shared feed-forward by sigmoid(gate x)");
  router_fields(f);
  f.add(
       "capacity_factor",
       &C::capacity_factor,
       "an expert takes so many times its even share of a microbatch; all that choose it if absent"
  )
      .above(0);
  f.add(
       "capacity_drop",
       &C::capacity_drop,
       "tokens that an expert drops beyond its capacity: the least likely, or the last"
  )
      .one_of({"probability", "position"});
  f.add("capacity_pad", &C::capacity_pad, "GEMMs see an expert's full capacity, filled with 0");
  for (const Condition& condition : kConditions) {
    f.check(condition.field, condition.check);
  }
}

mh::Table scaled(const MoeConfig& whole, const mh::ModelScale& to) {
  mh::Table own = mh::scaled(whole, to);
  own.set("first_dense", std::min(whole.first_dense, to.uneven ? 1 : to.layers - 1));
  const auto width = [&](int64_t of_whole) {
    return to.uneven ? to.hidden * 2 / 5 : to.narrowed(of_whole, whole.hidden);
  };
  if (to.uneven || whole.expert_hidden) {
    own.set("expert_hidden", width(whole.expert_hidden.value_or(0)));
  }
  if (whole.shared_hidden) {
    own.set("shared_hidden", width(*whole.shared_hidden));
  }
  return own;
}
