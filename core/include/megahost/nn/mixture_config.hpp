#pragma once
/// The fields of mixtures of experts, for models that have them in some of their layers.
///
/// ```cpp
/// struct Config : mh::DecoderConfig, mh::MixtureConfig {};
///
/// void fields(mh::Fields<Config>& f) {
///   mh::decoder_fields(f);
///   mh::mixture_fields(f, /*fewest=*/1);
/// }
/// ```

#include "megahost/export.hpp"
#include "megahost/model_scale.hpp"
#include "megahost/nn/decoder.hpp"
#include "megahost/nn/experts.hpp"
#include "megahost/nn/feed_forward.hpp"
#include "megahost/schema.hpp"
#include "megahost/value.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mh {

struct MixtureConfig {
  int64_t experts = 8; ///< 0: the model has no mixture
  int64_t experts_per_token = 2;
  std::optional<int64_t> expert_hidden;
  std::optional<int64_t> expert_latent;
  std::optional<int64_t> shared_hidden;
  bool shared_gate = false;
  std::string router = "topk_softmax";
  std::optional<bool> router_normalise;
  double router_scale = 1;
  int64_t router_groups = 1;
  int64_t router_groups_chosen = 1;
  std::vector<std::string> balance = {"auxiliary"};
  double balance_weight = 1e-2;
  double balance_bias_rate = 1e-3;
  double z_weight = 0;
  std::optional<double> capacity_factor;
  std::optional<std::string> capacity_drop;
  bool capacity_pad = false;

  /// Whether a bias steers the choice of experts.
  [[nodiscard]] MH_API bool has_bias() const;

  /// Whether the choice of groups is Hugging Face's, where a group is as good as its two best
  /// experts; here and in Megatron-LM as so many as a token has in each group.
  [[nodiscard]] MH_API bool rates_groups_by_two() const;

  /// One of the model's mixtures.
  ///
  /// Args:    dense: the feed-forward of layers without experts; its `hidden` is that of an expert
  ///          where `expert_hidden` is absent
  ///          layers: how many layers of the model have experts
  [[nodiscard]] MH_API MixtureSpec mixture(const FeedForwardSpec& dense, int64_t layers) const;
};

namespace mixture_detail {

/// The fields at which contradictions between fields are reported.
[[nodiscard]] MH_API std::vector<std::string> checked_fields();

/// The contradiction at a field of these, as a sentence; empty if there is none.
[[nodiscard]] MH_API std::string contradiction(const std::string& field, const MixtureConfig& c);

} // namespace mixture_detail

/// Declares the fields of a config that derives from MixtureConfig, and the checks between them.
///
/// Args:    fewest: the least number of experts; 0 where a model may have no mixture
template <class C>
void mixture_fields(Fields<C>& f, int64_t fewest) {
  f.add("experts", &C::experts, "feed-forwards of a layer that a token can choose")
      .at_least(static_cast<double>(fewest));
  f.add("experts_per_token", &C::experts_per_token, "experts that each token passes").at_least(1);
  f.add("expert_hidden", &C::expert_hidden, "hidden units of an expert; ffn_hidden if absent")
      .at_least(1);
  f.add(
       "expert_latent",
       &C::expert_latent,
       "elements of what experts read and make, projected from and to the hidden state (LatentMoE); "
       "hidden itself if absent"
  )
      .at_least(1);
  f.add(
       "shared_hidden",
       &C::shared_hidden,
       "hidden units of a feed-forward that every token passes in addition to its experts; none if "
       "absent"
  )
      .at_least(1);
  f.add("shared_gate", &C::shared_gate, "weigh the shared feed-forward by sigmoid(gate x)");
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
  for (const auto& field : mixture_detail::checked_fields()) {
    f.check(field, [field](const C& c) { return mixture_detail::contradiction(field, c); });
  }
}

/// The names that a file has for the matrices of an expert.
struct ExpertNames {
  const char* gate = "gate_proj";
  const char* up = "up_proj";
  const char* down = "down_proj";
};

/// Adds the names of a mixture's router and experts where a file has each expert by itself.
///
/// Args:    gated: whether the activation has a gate
///          theirs, ours: what names begin with, "model.layers.0.mlp." and "layers.0.mlp."
MH_API void add_expert_names(
    const MixtureConfig& config,
    bool gated,
    const std::string& theirs,
    const std::string& ours,
    std::vector<HfTensor>& map,
    const ExpertNames& names = {}
);

/// Adds the sizes of a small mixture in a model that is `hidden` wide (model_scale.hpp).
MH_API void
scale_mixture(const MixtureConfig& whole, int64_t hidden, const ModelScale& to, Table& ret_own);

/// The fields that a config.json does not decide (HfMapping::free): those of the auxiliary losses,
/// and of the rate at which the router's bias moves.
[[nodiscard]] MH_API std::vector<std::string> mixture_free();

/// The fields in one form (HfMapping::plain).
MH_API void mixture_plain(Table& fields);

} // namespace mh
